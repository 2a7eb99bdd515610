// Package must lets a step of the rig stop at the first thing that cannot be done, as t.Fatal does in a test: whoever
// begins a step catches what has stopped it. Nothing of the product may live here or use it.
package must

import "fmt"

// stopped is what a step panics with.
type stopped struct{ error }

// OK stops the step unless err is nil. The words, if there are any, say what could not be done.
func OK(err error, words ...any) {
	if err == nil {
		return
	}
	if len(words) > 0 {
		err = fmt.Errorf("%s: %w", fmt.Sprint(words...), err)
	}
	panic(stopped{err})
}

// Get returns v, or stops the step.
func Get[T any](v T, err error) T {
	OK(err)
	return v
}

// Catch does a step and returns what has stopped it.
func Catch(step func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case stopped:
			err = r.error
		default:
			panic(r)
		}
	}()
	step()
	return nil
}
