package wire

import (
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
)

func TestTheNoteFindsWhatIsFiledForAKey(t *testing.T) {
	for _, key := range []string{"A-1", `it's "quoted"`, "ключ, key \"x\")", strings.Repeat("k", 255), "bad\x01\xff"} {
		_, err := Conflict(Identified{Identity: dedup.Identity{Group: "g", Tag: "t", Key: key}}, []byte("{}"))
		for _, tag := range []string{"", "t"} {
			if note := FiledNote(tag, key); !strings.HasSuffix(err.Error(), note) {
				t.Errorf("%q does not end with %q", err, note)
			}
		}
		if strings.Contains(err.Error(), FiledNote("other", key)) || strings.Contains(err.Error(), FiledNote("", key+"x")) {
			t.Errorf("%q is found for another tag or key", err)
		}
	}
}
