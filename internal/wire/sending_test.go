package wire

import (
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

func TestWhatARelayTellsIsReadFromHeadersAndFromARemark(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 24, 20, 0, 0, 5e6, time.UTC)
	told := rabbit.Table{
		rabbit.HeaderPutAt: at.UnixMilli(), HeaderPublishedAt: at.Add(time.Minute).UnixMilli(),
		rabbit.HeaderSentAt: at.Add(time.Hour).UnixMilli(),
	}
	want := Sending{at, at.Add(time.Minute), at.Add(time.Hour)}
	s := ReadSending(told)
	if again, ok := SendingOf(s.String()); s != want || again != want || !ok {
		t.Errorf("read %v, and %v, %t from %q", s, again, ok, s)
	}
	for _, h := range []rabbit.Table{nil, {HeaderPublishedAt: int64(1)}, {rabbit.HeaderPutAt: "soon"},
		{rabbit.HeaderPutAt: at.UnixMilli(), rabbit.HeaderSentAt: int64(-1)}} {
		if s := ReadSending(h); s != (Sending{}) || s.String() != "" {
			t.Errorf("%v tells %v", h, s)
		}
	}
	for _, remark := range []string{"", "put into the outbox soon, due 1, sent 2", "the shelf is locked"} {
		if s, ok := SendingOf(remark); ok {
			t.Errorf("%q tells %v", remark, s)
		}
	}
}
