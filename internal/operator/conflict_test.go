package operator_test

import (
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// A body that was refused as conflict has become the body of its key: somebody mended the row. Its own letter, when
// that was purged, is missed by nobody. While another body has the key, it is.
func TestAConflictWhoseBodyHasItsKeyByNowIsNotMissed(t *testing.T) {
	w := newShop(t)
	sources := require.Get(wire.ParseKeySources("property:message_id"))(w.T)
	for name, has := range map[string]string{"mended": "{}", "taken": "another"} {
		d := rabbit.Delivery{Message: rabbit.Message{MessageID: name, Body: []byte("{}")}, Exchange: "stock", RoutingKey: tag}
		own, err := wire.Identify(group, sources, w.Queue, d)
		w.Must(err)
		w.success(group, name, time.Minute)
		hash := sha256.Sum256([]byte(has))
		w.Exec("UPDATE consumer_log SET body_hash = ? WHERE msg_key = ?", hash[:], name)
		filed, cause := wire.Conflict(own, d.Body)
		require.OK(w.T, errors.Join(w.Records.DeadRows(t.Context(), []dedup.Death{{
			Entry: dedup.Entry{Identity: filed.Identity, BodyHash: own.BodyHash, MessageID: name, Body: d.Body,
				Properties: wire.MarshalProperties(d)},
			Reason: "conflict", Cause: cause.Error(),
		}})...))
	}
	w.Exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp - INTERVAL 1 MINUTE, dead_at = dead_at - " +
		"INTERVAL 1 MINUTE WHERE consumer_status = 3")
	r := w.run(nil)
	if len(r.Findings) != 1 || r.Findings[0].Kind != "dead_without_letter" {
		t.Fatalf("found %q, want the one conflict whose key another body has", found(r))
	}
	row, err := w.Records.Read(t.Context(), dedup.Identity{Group: group, Tag: r.Findings[0].Tag, Key: r.Findings[0].Key})
	if err != nil || row.MessageID != "taken" {
		t.Errorf("it is %q, %v; want taken", row.MessageID, err)
	}
}
