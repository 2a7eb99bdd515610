// Package check tells a developer what the statements of a handler show. It must not know messages or transactions, nor
// decide anything.
package check

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Place is a statement, and the line of the code that sends it.
type Place struct{ Statement, Line string }

// longest is how much of a statement is told: enough to find it again.
const longest = 200

// At is the place of a statement that the caller sends.
func At(text string) Place {
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return Place{text, Line()}
}

// most bounds what is remembered of what was told. Who has as many warnings has enough to do.
const most = 1000

// Log tells each thing once. Many goroutines may use it.
type Log struct {
	Out *slog.Logger

	mu   sync.Mutex
	told map[string]bool // guarded by mu
}

// Warn tells, the first time, what is amiss at a place, and what to do.
func (l *Log) Warn(ctx context.Context, what string, at Place, do string, attrs ...slog.Attr) {
	if !l.first(fmt.Sprint(what, at)) {
		return
	}
	if at.Statement != "" {
		attrs = append(attrs, slog.String("statement", at.Statement))
	}
	if at.Line != "" {
		attrs = append(attrs, slog.String("line", at.Line))
	}
	l.Out.LogAttrs(ctx, slog.LevelWarn, "check: "+what, append(attrs, slog.String("do", do))...)
}

func (l *Log) first(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told[key] || len(l.told) >= most {
		return false
	}
	if l.told == nil {
		l.told = map[string]bool{}
	}
	l.told[key] = true
	return true
}

// ours are packages whose lines say nothing to who has written a handler, with what is below them.
var ours = []string{
	"github.com/rollbackd/rollbackd/consumer", "github.com/rollbackd/rollbackd/dedup",
	"github.com/rollbackd/rollbackd/internal", "github.com/rollbackd/rollbackd/outbox",
	"github.com/rollbackd/rollbackd/stock", "gorm.io", "database/sql", "runtime",
}

// isOurs reports whether a function is of such a package. Tests are not: they are somebody's code, too.
func isOurs(function string) bool {
	from := strings.LastIndexByte(function, '/') + 1
	name, _, _ := strings.Cut(function[from:], ".")
	path := function[:from] + name
	if strings.HasSuffix(path, "_test") {
		return false
	}
	return slices.ContainsFunc(ours, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
}

// Line is where the innermost of the callers stands that is not ours, as file:line; "" when all are.
func Line() string {
	var callers [64]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers[:])])
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); f.Function != "" && !isOurs(f.Function) {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
	}
	return ""
}

// LineOf is where a function, or the method Handle of another value, stands; "" when it is ours, or nobody can say.
func LineOf(code any) string {
	v := reflect.ValueOf(code)
	if v.Kind() != reflect.Func {
		m, ok := reflect.TypeOf(code).MethodByName("Handle")
		if !ok {
			return ""
		}
		v = m.Func
	}
	f := runtime.FuncForPC(v.Pointer())
	if file, line := f.FileLine(f.Entry()); !isOurs(f.Name()) && line > 1 { // 1 is the compiler's own
		return fmt.Sprintf("%s:%d", file, line)
	}
	return ""
}
