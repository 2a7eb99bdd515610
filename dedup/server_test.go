package dedup

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// A row that the server finds too large could never be written: its message would come back for ever.
func TestEveryStatementFitsIntoOneMiB(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	dsn := server.Database(t)
	newWorldOn(t, dsn).exec("SET GLOBAL max_allowed_packet = 1048576")
	w := worldOf(t, dsn, open(t, dsn))
	require.Is(t, w.number("SELECT @@max_allowed_packet"), 1<<20, "max_allowed_packet")
	// given values that take as many bytes as they can: each a quote, which is escaped, or a character of four bytes
	quotes := func(n, unique int) string { return fmt.Sprintf("%s%05d", strings.Repeat("'", n-5), unique) }
	worst := func(i int) Entry {
		k := Identity{Group: quotes(MaxGroup, 0), Tag: quotes(MaxTag, 0), Key: quotes(MaxKey, i)}
		return Entry{Identity: k, BodyHash: sha256.Sum256([]byte{byte(i)}), MessageID: quotes(MaxMessageID, i)}
	}
	cause := strings.Repeat("\U0001F600", 2*MaxRemark)

	huge := worst(0)
	huge.Body, huge.Properties = bytes.Repeat([]byte{0}, 16<<20), bytes.Repeat([]byte("\""), MaxProperties)
	assert.OK(t, w.log.Dead(t.Context(), absent(huge.Identity), huge, "malformed", cause))
	huge.Identity.Key = quotes(MaxKey, 1)
	w.dead(Death{Entry: huge, Reason: "malformed", Cause: cause})
	huge.Identity.Key = quotes(MaxKey, 2)
	c := require.Get(w.log.Claim(t.Context(), absent(huge.Identity), huge, "owner"))(t)
	w.fail(c, cause)

	var letters []Death
	var entries []Entry
	var keys []Identity
	for i := range 3000 {
		letter := Death{Entry: worst(10_000 + i), Reason: "permanent", Cause: cause}
		if letter.Entry.Body = bytes.Repeat([]byte{0}, i%100); i%100 == 0 {
			letter.Entry.Body = huge.Body[:MaxBody]
		}
		letters, entries = append(letters, letter), append(entries, worst(20_000+i))
		keys = append(keys, letter.Entry.Identity)
	}
	w.dead(letters...)
	assert.OK(t, w.insertSuccess(entries...))
	rows := require.Get(w.log.LookUp(t.Context(), keys))(t)
	for _, k := range keys {
		require.Is(t, rows[k].Status, Dead, "%v", k)
	}
}

func TestADuplicateIsKnownWhateverTheServersLanguage(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	dsn := server.Database(t)
	if _, err := newWorldOn(t, dsn).pool.Exec("SET GLOBAL lc_messages = 'ja_JP'"); err != nil {
		t.Skipf("the server speaks English only: %v", err)
	}
	w := worldOf(t, dsn, open(t, dsn))
	k := key("k")
	assert.OK(t, w.insertSuccess(entryOf(k)))
	assert.Error(t, w.insertSuccess(entryOf(k)), ErrExists, "insert again")
	_, err := w.log.Claim(t.Context(), absent(k), entryOf(k), "owner")
	assert.Error(t, err, ErrLost, "claim")
}

func TestTheServersPacketLimitIsKnown(t *testing.T) {
	w := newWorld(t)
	limit := w.number("SELECT @@max_allowed_packet")
	before := w.number("SELECT CONNECTION_ID()")
	_, err := w.pool.Exec("DO LENGTH('" + strings.Repeat("x", limit) + "')")
	got := mysqldb.Classify(err)
	assert.That(t, got == mysqldb.FaultTooLarge, "%v, want %v: %v", got, mysqldb.FaultTooLarge, err)
	assert.Is(t, w.number("SELECT CONNECTION_ID()"), before, "the connection was lost: now, was")
}
