package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// maxKeptValue is the size in bytes up to which a header's value always fits into a copy. A larger one may have to be
// replaced by its stand-in, so it takes part in an identity by its digest only. No usable key is that long.
const maxKeptValue = 1024

// The fields of a stand-in.
const (
	standInSHA256 = "x-rollbackd-cut-sha256"
	standInBytes  = "x-rollbackd-cut-bytes"
)

// standIn is what a copy carries in place of a value that is too large.
func standIn(v any) rabbit.Table {
	c, ok := textOf(v) // text by itself, everything else with its type
	if !ok {
		c = string(appendCanonical(nil, v))
	}
	sum := sha256.Sum256([]byte(c))
	return rabbit.Table{standInSHA256: sum[:], standInBytes: int64(len(c))}
}

// standInDigest is the digest that the replaced value had, as longText gives it.
func standInDigest(v any) (string, bool) {
	t, _ := v.(rabbit.Table)
	sum, ok := t[standInSHA256].([]byte)
	if len(t) != 2 || !ok || len(sum) != sha256.Size {
		return "", false
	}
	return digestText(sum), true
}

func digestText(sum []byte) string { return "over-long, sha256:" + hex.EncodeToString(sum) }

// appendCanonical writes a value so that it reads the same after RabbitMQ carried it, whose integers and floats may
// change their width on the way.
func appendCanonical(b []byte, v any) []byte {
	if n, ok := integer(v); ok {
		return binary.BigEndian.AppendUint64(append(b, 'l'), uint64(n))
	}
	if text, ok := textOf(v); ok {
		return appendSized(append(b, 'S'), text)
	}
	switch v := v.(type) {
	case nil:
		return append(b, 'V')
	case bool:
		if v {
			return append(b, 't', 1)
		}
		return append(b, 't', 0)
	case float32:
		return appendCanonical(b, float64(v))
	case float64:
		if math.IsNaN(v) {
			v = math.NaN() // one of the many
		}
		return binary.BigEndian.AppendUint64(append(b, 'd'), math.Float64bits(v))
	case time.Time:
		return binary.BigEndian.AppendUint64(append(b, 'T'), uint64(v.Unix()))
	case rabbit.Decimal:
		return binary.BigEndian.AppendUint32(append(b, 'D', v.Scale), uint32(v.Value))
	case rabbit.Table:
		b = binary.BigEndian.AppendUint64(append(b, 'F'), uint64(len(v)))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			b = appendCanonical(appendSized(b, name), v[name])
		}
		return b
	case []any:
		b = binary.BigEndian.AppendUint64(append(b, 'A'), uint64(len(v)))
		for _, e := range v {
			b = appendCanonical(b, e)
		}
		return b
	}
	return appendSized(append(b, '?'), fmt.Sprintf("%T", v)) // no such type comes from the client
}

func integer(v any) (int64, bool) {
	switch v.(type) {
	case int64, int32, int16, int8, int, uint8, uint16, uint32:
		return rabbit.Int(v)
	}
	return 0, false
}

func appendSized(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(s))), s...)
}
