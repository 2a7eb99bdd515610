package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/maphash"

	"github.com/rollbackd/rollbackd/dedup"
)

// Message is one that others may be in the way of.
type Message interface {
	// Said is who it is, its body, and where what it names is kept, which belongs to [Contention].
	Said() (k dedup.Identity, body []byte, named *Values)
}

// Values are what a message names: itself, and numbers and texts in its body with the field where each stands. Nil: its
// body was not read.
type Values []uint64

// maxNamed is how many values of a message are looked at, itself and those that its body begins with, and maxRead how
// many bytes of that: many bodies are read in a row, and a large one must not hold up a worker.
const maxNamed, maxRead = 200, 16 << 10

var nameSeed = maphash.MakeSeed()

// named is what a message names.
func named(m Message) Values {
	k, body, values := m.Said()
	if *values == nil {
		*values = append(*values, maphash.Comparable(nameSeed, k))
		d := json.NewDecoder(bytes.NewReader(body[:min(len(body), maxRead)]))
		d.UseNumber()
		values.read(d, "")
	}
	return *values
}

// read notes what the next value names, as far as it can be read, and reports whether there may be more.
func (n *Values) read(d *json.Decoder, field string) bool {
	t, err := d.Token()
	if err != nil || len(*n) >= maxNamed {
		return false
	}
	switch t := t.(type) {
	case json.Delim:
		for d.More() {
			if t == '{' {
				if key, err := d.Token(); err == nil {
					field, _ = key.(string)
				}
			}
			if !n.read(d, field) {
				return false
			}
		}
		_, err = d.Token() // its end
	case string, json.Number:
		*n = append(*n, maphash.Comparable(nameSeed, [2]string{field, fmt.Sprint(t)}))
	}
	return err == nil
}
