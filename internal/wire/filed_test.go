package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestTheNoteFindsWhatIsFiledForAKey(t *testing.T) {
	for _, key := range []string{"A-1", `it's "quoted"`, "ключ, key \"x\")", strings.Repeat("k", 255), "bad\x01\xff"} {
		_, err := Conflict(Identified{Identity: dedup.Identity{Group: "g", Tag: "t", Key: key}}, []byte("{}"))
		for _, tag := range []string{"", "t"} {
			note := FiledNote(tag, key)
			assert.That(t, strings.HasSuffix(err.Error(), note), "%q does not end with %q", err, note)
		}
		assert.That(t, !strings.Contains(err.Error(), FiledNote("other", key)) &&
			!strings.Contains(err.Error(), FiledNote("", key+"x")), "%q is found for another tag or key", err)
	}
}

// Given an identity and a body, when its message is made anew, then it has that identity, also when it is kept as
// properties; or nobody is told that it has.
func TestARemadeMessageHasItsIdentity(t *testing.T) {
	const body = `{"order_sn":"A-1"}`
	sum := sha256.Sum256([]byte(body))
	for _, c := range []struct {
		sources, key string
		want         bool
	}{
		{sourcesExample, "A-1", true},
		{sourcesExample, "key with spaces, ü and \"quotes\"", true},
		{"property:message_id", "A-1", true},
		{"property:correlation_id,body:sha256", "A-1", true},
		{"json:/order_sn", "A-1", true},
		{"json:/order_sn", "A-2", false},
		{"json:/order_sn,property:message_id", "A-2", false},
		{"json:/other,property:message_id", "A-2", true},
		{"json:/other", "A-2", false},
		{"body:sha256", hex.EncodeToString(sum[:]), true},
		{"body:sha256", "A-1", false},
	} {
		sources := require.Get(ParseKeySources(c.sources))(t)
		id := dedup.Identity{Group: "g", Tag: "stock.rollback", Key: c.key}
		d, ok := Remake(sources, "q", id, []byte(body), "0A1B")
		assert.Is(t, ok, c.want, "%s, key %s", c.sources, c.key)
		if !ok {
			continue
		}
		kept, err := UnmarshalProperties(MarshalProperties(d))
		kept.Body = []byte(body)
		own, idErr := Identify("g", sources, "q", kept)
		assert.That(t, err == nil && idErr == nil && own.Identity == id,
			"%s, key %s: kept it is %v, %v, %v", c.sources, c.key, own.Identity, err, idErr)
	}
}
