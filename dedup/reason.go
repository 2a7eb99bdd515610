package dedup

// Reason says why a message is dead. It stands in the row, in a header of the letter, in logs and as a metric's label.
type Reason string

// The reasons, a closed list. A row that a later version wrote may hold another one.
const (
	ReasonMalformed     Reason = "malformed"      // its body cannot be what the handler takes
	ReasonUnidentified  Reason = "unidentified"   // no usable tag or key
	ReasonConflict      Reason = "conflict"       // its key is taken by another body
	ReasonPermanent     Reason = "permanent"      // the handler says that no retry can help
	ReasonExhausted     Reason = "exhausted"      // the last attempt failed
	ReasonCrashed       Reason = "crashed"        // the last attempt never came back
	ReasonDeliveryLimit Reason = "delivery_limit" // the broker gave it up
	// ReasonEffectUnknown: the log of the consumer before rollbackd left it open, so it may have had its effect. Alone
	// among the reasons it means a row without a letter; see Log.TakeOver.
	ReasonEffectUnknown Reason = "effect_unknown"
)

// Reasons lists all reasons.
func Reasons() []Reason {
	return []Reason{
		ReasonMalformed, ReasonUnidentified, ReasonConflict, ReasonPermanent, ReasonExhausted, ReasonCrashed,
		ReasonDeliveryLimit, ReasonEffectUnknown,
	}
}
