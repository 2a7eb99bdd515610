package strictjson

// Object is an object that is being read, and the names of its fields so far. Its zero value has not begun.
type Object struct {
	begun bool
	n     int
	few   [8]struct{ start, end int32 } // where the first names stand, as long as nothing in them is escaped
	many  map[string]struct{}           // else all names
}

// add reports whether name is new. It stands in the body up to end, unless it was escaped there.
func (o *Object) add(body, name []byte, end int, escaped bool) bool {
	if o.many == nil {
		for _, f := range o.few[:o.n] {
			if string(body[f.start:f.end]) == string(name) {
				return false
			}
		}
		if o.n < len(o.few) && !escaped {
			o.few[o.n].start, o.few[o.n].end = int32(end-len(name)), int32(end)
			o.n++
			return true
		}
		o.many = make(map[string]struct{}, 2*len(o.few))
		for _, f := range o.few[:o.n] {
			o.many[string(body[f.start:f.end])] = struct{}{}
		}
	}
	if _, seen := o.many[string(name)]; seen {
		return false
	}
	o.many[string(name)] = struct{}{}
	return true
}
