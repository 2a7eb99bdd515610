package rabbit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func headerOf(body int) []byte {
	h := binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, uint64(body))
	return append(h, 0, 0)
}

// FuzzShedder holds, for any sequence of frames on two channels, each with a consumer that is weighed and one that is
// not: only body frames of deliveries that were shed are missing in what the client gets, their headers say that no
// body follows, all else comes byte by byte as it was, and what was let through is no more than the share and one
// delivery that is larger.
func FuzzShedder(f *testing.F) {
	f.Add(uint16(3000), uint16(100), []byte{0, 10, 30, 60, 0, 10, 30, 60, 0, 30, 60}, []byte{})
	f.Add(uint16(1500), uint16(7), []byte{0, 10, 30, 0, 10, 30, 30, 0, 6, 10, 30}, []byte{})
	f.Add(uint16(50), uint16(1), []byte{0, 10, 30, 30, 0, 10, 1, 11, 31, 61, 30}, []byte{3, 0, 1, 0, 1, 255, 255})
	f.Add(uint16(60000), uint16(4096), []byte{0, 10, 40, 0, 10, 20, 5, 0, 10, 40, 45}, []byte{2, 0, 1})
	f.Add(uint16(2867), uint16(18), []byte("1Y19"), []byte{})
	f.Add(uint16(4000), uint16(100), []byte{0, 10, 138}, []byte{}) // a second header of one delivery
	consumers := [2]string{"c", "e"}
	f.Fuzz(func(t *testing.T, share, step uint16, script, tail []byte) {
		type piece struct {
			bytes []byte
			ch    int
			tag   uint64 // of the delivery whose header this is
			body  bool
		}
		var in []byte
		var pieces []piece
		var owner [2]uint64 // the delivery that was announced last, if its consumer is weighed
		ledgers := [2]*ledger{}
		for ch := range ledgers {
			ledgers[ch] = &ledger{budget: NewBudget(int64(share), 1)}
		}
		var tag uint64
		weights := [2]map[uint64]int64{{}, {}}
		sizes := map[uint64]uint64{}
		for i, b := range script {
			ch := int(b % 2)
			p := piece{ch: ch}
			switch kind := int(b) / 2 % 8; kind {
			case 0, 1, 2: // a delivery, for the watched consumer or for another
				tag++
				name := consumers[ch]
				if kind == 2 {
					name = "n"
				}
				args := append([]byte("\x00\x3c\x00\x3c\x01"+name), binary.BigEndian.AppendUint64(nil, tag)...)
				p.bytes = frame(frameOfMethod, uint16(ch+1), append(args, "\x00\x00\x01q"...))
				owner[ch] = 0
				if kind != 2 {
					owner[ch] = tag
				}
			case 3: // something else that is asked or answered
				p.bytes = frame(frameOfMethod, uint16(ch+1), []byte("\x00\x3c\x00\x50\x00"))
				owner[ch] = 0
			case 4, 5: // a header, whose body need not be what follows
				size := int(b) * 16
				p.bytes = frame(frameOfHeader, uint16(ch+1), headerOf(size))
				p.tag, owner[ch] = owner[ch], 0
				if p.tag != 0 {
					weights[ch][p.tag], sizes[p.tag] = weigh(int64(size), headerWeight(p.bytes, headerFixedBytes)), uint64(size)
				}
			default:
				p.bytes = frame(frameOfBody, uint16(ch+1), bytes.Repeat([]byte{byte(i)}, int(b)*8))
				p.body = true
			}
			in = append(in, p.bytes...)
			pieces = append(pieces, p)
		}
		w := newWalker(bytes.NewReader(append(bytes.Clone(in), tail...)))
		w.agreed(largestFrame)
		for ch, l := range ledgers {
			require.That(t, w.watch(consumers[ch], l), "the consumer tag is taken")
		}
		got := readAll(t, w, max(1, int(step)))
		var want []byte
		var pending [2]uint64 // bytes of a shed body still to come
		for _, p := range pieces {
			ch, left := p.ch, &pending[p.ch]
			size := uint64(len(p.bytes) - frameOverhead)
			switch {
			case p.tag != 0 && ledgers[ch].take(p.tag).shed:
				want = append(want, frame(frameOfHeader, uint16(ch+1), headerOf(0))...)
				*left = sizes[p.tag]
				continue
			case p.body && *left > 0:
				*left -= min(*left, size)
				continue
			case p.bytes[0] == frameOfMethod:
				*left = 0
			}
			want = append(want, p.bytes...)
		}
		require.That(t, bytes.HasPrefix(got, want), "got  %x\nwant %x", got, want)
		for ch, l := range ledgers {
			sum, large := int64(0), 0
			for tag, weight := range weights[ch] {
				switch {
				case l.take(tag).shed:
				case weight > l.budget.share:
					large++
				default:
					sum += weight
				}
			}
			require.That(t, sum <= l.budget.share && large <= 1,
				"%d bytes and %d larger ones were let through, want a share of %d and one", sum, large, share)
		}
	})
}

// readAll reads to the end, so many bytes at a time.
func readAll(t *testing.T, r io.Reader, step int) []byte {
	t.Helper()
	var all bytes.Buffer
	require.Get(io.CopyBuffer(struct{ io.Writer }{&all}, r, make([]byte, step)))(t) // the buffer would read as it likes
	return all.Bytes()
}

// Given a few small deliveries, then a window is a few times as wide as they were many, whatever would have room.
func TestAWindowIsNoMuchWiderThanWhatWasSeen(t *testing.T) {
	b := &Budget{share: 8 << 20, seen: 10, squares: 10 << 20} // of 1 KiB each
	assert.Is(t, b.window(2000, 0), 80, "a window")
}

// The ledger agrees with a plain set of tags, whatever is settled in whatever order.
func TestLedgerAgreesWithASetOfTags(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var l ledger
		open, last := map[uint64]bool{}, uint64(0)
		for range 60 {
			if r.IntN(3) == 0 {
				for range r.Uint64N(5) {
					last++
					open[last] = true
					l.admit(last, 1)
				}
				l.hand(last)
			}
			some := slices.Sorted(maps.Keys(open)) // as they are, with one taken out
			if len(some) > 0 {
				i := r.IntN(len(some))
				require.Is(t, l.leading(some), len(some), "of all that are open lead")
				require.Is(t, l.leading(slices.Delete(some, i, i+1)), i, "lead the one that is not among them")
			}
			tag, multiple := r.Uint64N(last+3), r.IntN(4) == 0
			n, err := l.settle(tag, multiple)
			require.That(t, open[tag] == (err == nil) && (err == nil || errors.Is(err, ErrNotOutstanding)),
				"settle %d (multiple %v) of %v = %v", tag, multiple, open, err)
			before := len(open)
			maps.DeleteFunc(open, func(k uint64, _ bool) bool { return err == nil && (k == tag || multiple && k < tag) })
			require.Is(t, int(n), before-len(open), "settle %d (multiple %v) settled %d", tag, multiple, n)
		}
	}
}

// One delivery that is held must not make the ledger remember every delivery after it, and what was not handed out
// cannot be settled.
func TestLedgerStaysSmallBehindADeliveryThatIsHeld(t *testing.T) {
	var l ledger
	l.admit(1, 1)
	for tag := uint64(2); tag < 10_000; tag++ {
		l.admit(tag, 1)
		_, err := l.settle(tag, false)
		require.That(t, errors.Is(err, ErrNotOutstanding), "settling what is not handed out: %v", err)
		l.hand(tag)
		require.Get(l.settle(tag, false))(t)
	}
	assert.AtMost(t, len(l.open), 2, "entries")
}

// Given three deliveries, the second of which has no room, then no ack of many passes that one, which nobody has seen;
// and once the first is settled there is room again.
func TestAnAckOfManyPassesNoDeliveryThatWasShed(t *testing.T) {
	l := ledger{budget: NewBudget(1, 1)}
	for i, weight := range []int64{1, 1, 0} {
		require.Is(t, l.admit(uint64(i+1), weight), i != 1, "there is room for delivery %d", i+1)
	}
	l.hand(3)
	n, err := l.settle(3, true)
	assert.That(t, n == 0 && errors.Is(err, ErrNotOutstanding), "an ack of many passes what is not seen: %d, %v", n, err)
	require.Get(l.settle(1, false))(t)
	assert.Is(t, l.admit(4, 1), true, "there is room once one is settled")
}
