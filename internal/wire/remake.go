package wire

import (
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Remake makes the message of an identity of which only the body and perhaps its message id are known: it says its tag
// as its type, and its key where the first source looks that can be filled in. False when it would be another message
// all the same: the key comes from the body, and the body has none or another one.
func Remake(
	sources []KeySource, queue string, id dedup.Identity, body []byte, messageID string,
) (rabbit.Delivery, bool) {
	d := rabbit.Delivery{Message: rabbit.Message{
		Type: id.Tag, MessageID: messageID[:min(len(messageID), dedup.MaxMessageID)], Body: body,
		DeliveryMode: rabbit.Persistent,
	}}
	for i := range sources {
		if fillIn(&d, &sources[i], id.Key) {
			break
		}
	}
	own, err := Identify(id.Group, sources, queue, d)
	return d, err == nil && own.Identity == id
}

// fillIn puts a key where a source looks for it, and reports whether no later source is looked at.
func fillIn(d *rabbit.Delivery, s *KeySource, key string) bool {
	switch s.kind {
	case fromHeader:
		d.Headers = rabbit.Table{s.name: key}
	case fromMessageID:
		d.MessageID = key
	case fromCorrelationID:
		d.CorrelationID = key
	case fromJSON:
		_, found, flaw := lookUp(d.Body, s.steps)
		return found || flaw != ""
	case fromBodyHash:
	}
	return true
}
