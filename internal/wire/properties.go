package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// MaxPropertiesBytes bounds what MarshalProperties returns: the column is a BLOB of 64 KiB.
const MaxPropertiesBytes = 60_000

// texts are the properties that are text, by their names in consumer_log, which keeps what a message carries besides
// its body as JSON. Text that is not UTF-8, and types that JSON lacks, are objects with one field that begins with $.
func texts(d *rabbit.Delivery) map[string]*string {
	return map[string]*string{
		"exchange": &d.Exchange, "routing_key": &d.RoutingKey, "content_type": &d.ContentType,
		"content_encoding": &d.ContentEncoding, "message_id": &d.MessageID, "correlation_id": &d.CorrelationID,
		"reply_to": &d.ReplyTo, "type": &d.Type, "app_id": &d.AppID,
	}
}

// MarshalProperties writes the message's properties, headers and where it came from as JSON of at most
// MaxPropertiesBytes, for a person to read and for UnmarshalProperties. What no copy carries on (user_id, expiration)
// is left out.
func MarshalProperties(m rabbit.Delivery) []byte {
	p := map[string]any{}
	for name, text := range texts(&m) {
		if *text != "" {
			p[name] = encodeValue(*text)
		}
	}
	for name, n := range map[string]uint8{"priority": m.Priority, "delivery_mode": m.DeliveryMode} {
		if n > 0 {
			p[name] = n
		}
	}
	if !m.Timestamp.IsZero() {
		p["timestamp"] = m.Timestamp.Unix()
	}
	headers, cut := m.Headers, false
	if tableBytes(headers) > MaxPropertiesBytes/12 {
		headers, cut = cutHeaders(headers)
	}
	if len(headers) > 0 {
		p["headers"] = encodeTable(headers)
	}
	if cut { // some headers had to be replaced by {"$cut": bytes}, or left out
		p["cut"] = true
	}
	b, err := json.Marshal(p)
	if err != nil { // cannot be: everything encoded is text, an integer, a bool, nil or made of these
		return fmt.Appendf(nil, `{"cut":true,"headers":{"$error":%q}}`, err)
	}
	return b
}

// cutHeaders returns as many headers as fit, measured as JSON, and whether any is missing or was replaced.
func cutHeaders(h rabbit.Table) (rabbit.Table, bool) {
	const room = MaxPropertiesBytes - 20_000 // nine properties of 255 bytes, each byte at most 6 in JSON, and names
	kept, size, cut := make(rabbit.Table, len(h)), 0, false
	bySize := append(foreignBySize(h), slices.DeleteFunc(slices.Collect(maps.Keys(h)), isForeign)...)
	for _, name := range slices.Backward(bySize) { // the smallest first: they say most per byte
		v := h[name]
		n := jsonBytes(name, v)
		if size+n > room {
			v, cut = cutMark(valueBytes(v)), true
			n = jsonBytes(name, v)
		}
		if size+n <= room {
			kept[name] = v
			size += n
		}
	}
	return kept, cut
}

// cutMark stands for a value that was left out, by its size.
type cutMark int

func jsonBytes(name string, v any) int {
	b, err := json.Marshal(map[string]any{name: encodeValue(v)})
	if err != nil {
		return math.MaxInt32
	}
	return len(b)
}

// UnmarshalProperties is the inverse of MarshalProperties; with the body added, Identify and Copy give what they gave
// for the message then. Headers that were cut are absent.
func UnmarshalProperties(b []byte) (m rabbit.Delivery, err error) {
	var p struct {
		Timestamp    *int64         `json:"timestamp"` // seconds since 1970
		Priority     uint8          `json:"priority"`
		DeliveryMode uint8          `json:"delivery_mode"`
		Headers      map[string]any `json:"headers"`
	}
	kept := map[string]any{}
	errs := []error{json.Unmarshal(b, &p), json.Unmarshal(b, &kept)}
	for name, text := range texts(&m) {
		if kept[name] == nil {
			continue
		}
		v, err := decodeValue(kept[name])
		var ok bool
		if *text, ok = v.(string); !ok && err == nil {
			err = fmt.Errorf("%T where text belongs", v)
		}
		errs = append(errs, err)
	}
	m.Priority, m.DeliveryMode = p.Priority, p.DeliveryMode
	if p.Timestamp != nil {
		m.Timestamp = time.Unix(*p.Timestamp, 0)
	}
	if p.Headers != nil {
		m.Headers, err = decodeTable(p.Headers)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return rabbit.Delivery{}, fmt.Errorf("read the properties of a message: %w", err)
	}
	return m, nil
}

func encodeTable(t rabbit.Table) map[string]any {
	out := make(map[string]any, len(t))
	for name, v := range t {
		if !utf8.ValidString(name) || name != "" && name[0] == '$' {
			name = "$" + base64.StdEncoding.EncodeToString([]byte(name))
		}
		out[name] = encodeValue(v)
	}
	return out
}

// scalars are of the types that are kept as text under their name.
var scalars = []any{int64(0), int32(0), int16(0), int8(0), 0, uint8(0), uint16(0), uint32(0), float32(0), float64(0)}

// encodeValue keeps the type: strings, bools, nil and arrays are themselves, everything else is {"$type": value}.
func encodeValue(v any) any {
	one := func(kind string, v any) any { return map[string]any{"$" + kind: v} }
	switch v := v.(type) {
	case nil, bool:
		return v
	case string:
		if utf8.ValidString(v) {
			return v
		}
		return one("string", []byte(v))
	case []byte:
		return one("bytes", v)
	case time.Time:
		return one("time", strconv.FormatInt(v.Unix(), 10))
	case rabbit.Decimal:
		return one("decimal", fmt.Sprintf("%d/%d", v.Value, v.Scale))
	case rabbit.Table:
		return one("table", encodeTable(v))
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = encodeValue(e)
		}
		return out
	case cutMark:
		return one("cut", strconv.Itoa(int(v)))
	}
	if slices.ContainsFunc(scalars, func(of any) bool { return reflect.TypeOf(of) == reflect.TypeOf(v) }) {
		return one(fmt.Sprintf("%T", v), fmt.Sprint(v))
	}
	return one("unknown", fmt.Sprintf("%T", v))
}

func decodeTable(in map[string]any) (rabbit.Table, error) {
	out := make(rabbit.Table, len(in))
	for name, v := range in {
		if name != "" && name[0] == '$' {
			raw, err := base64.StdEncoding.DecodeString(name[1:])
			if err != nil {
				return nil, fmt.Errorf("header name %q: %w", name, err)
			}
			name = string(raw)
		}
		v, err := decodeValue(v)
		if errors.Is(err, errCut) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("header %q: %w", name, err)
		}
		out[name] = v
	}
	return out, nil
}

var errCut = errors.New("the value was left out")

func decodeValue(v any) (any, error) {
	switch v := v.(type) {
	case nil, bool, string:
		return v, nil
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			var err error
			if out[i], err = decodeValue(e); err != nil {
				return nil, fmt.Errorf("element %d: %w", i, err)
			}
		}
		return out, nil
	case map[string]any:
		if len(v) == 1 {
			for kind, value := range v {
				return decodeTagged(kind, value)
			}
		}
	}
	return nil, fmt.Errorf("unexpected %T", v)
}

func decodeTagged(kind string, v any) (any, error) {
	if t, ok := v.(map[string]any); ok && kind == "$table" {
		return decodeTable(t)
	}
	s, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("%s holds %T", kind, v)
	}
	switch kind {
	case "$string", "$bytes":
		b, err := base64.StdEncoding.DecodeString(s)
		if kind == "$string" {
			return string(b), err
		}
		return b, err
	case "$time":
		n, err := strconv.ParseInt(s, 10, 64)
		return time.Unix(n, 0), err
	case "$decimal":
		var d rabbit.Decimal
		_, err := fmt.Sscanf(s, "%d/%d", &d.Value, &d.Scale)
		return d, err
	case "$cut":
		return nil, errCut
	}
	for _, of := range scalars {
		if t := reflect.TypeOf(of); kind == "$"+t.Name() {
			into := reflect.New(t)
			_, err := fmt.Sscan(s, into.Interface())
			return into.Elem().Interface(), err
		}
	}
	return nil, fmt.Errorf("unknown type %s", kind)
}

// Exported makes a message of what a line of an export says: its properties, its headers, each JSON, and its body.
func Exported(properties, headers json.RawMessage, body []byte) (rabbit.Delivery, error) {
	fields := map[string]json.RawMessage{}
	if len(properties) > 0 {
		if err := json.Unmarshal(properties, &fields); err != nil {
			return rabbit.Delivery{}, fmt.Errorf("its properties are no JSON object: %w", err)
		}
	}
	if len(headers) > 0 && !bytes.Equal(headers, []byte("null")) {
		fields["headers"] = headers
	}
	joined, err := json.Marshal(fields)
	if err != nil {
		return rabbit.Delivery{}, err
	}
	d, err := UnmarshalProperties(joined)
	d.Body = body
	return d, err
}
