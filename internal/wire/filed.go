package wire

// FiledNote is how the remark of a message that is filed under a key of rollbackd's own ends: with its original tag,
// unless that is "" here, and key.
func FiledNote(tag, key string) string {
	if tag == "" {
		return ", key " + quote(key) + ")"
	}
	return "(tag " + quote(tag) + ", key " + quote(key) + ")"
}
