package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// progress is a file with one line for each part of a run that is done, so that a run that was ended can go on. The
// first line says what is measured: only the same goes on.
type progress struct {
	file *os.File
	done map[string]json.RawMessage
}

type progressLine struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
}

// openProgress begins a file anew or, to resume, reads what is there.
func openProgress(path string, what any, resume bool) *progress {
	p := &progress{done: map[string]json.RawMessage{}}
	text := progressText("what", what)
	if resume {
		before, err := os.ReadFile(path)
		if err == nil {
			text = p.read(before, text)
		} else if !errors.Is(err, fs.ErrNotExist) {
			must.OK(err)
		}
	}
	// What an end in the middle of a line has left goes.
	must.OK(os.MkdirAll(filepath.Dir(path), 0o755))
	must.OK(os.WriteFile(path, text, 0o644))
	p.file = must.Get(os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o644))
	return p
}

// read takes all whole lines, and returns them.
func (p *progress) read(text, head []byte) []byte {
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	if !bytes.HasPrefix(text, head) {
		first, _, _ := bytes.Cut(text, []byte("\n"))
		must.OK(fmt.Errorf("it is of another run:\n%s\nand not of\n%swithout -resume it is begun anew", first, head))
	}
	for line := range bytes.Lines(text[len(head):]) {
		var l progressLine
		must.OK(json.Unmarshal(line, &l))
		p.done[l.Name] = l.Value
	}
	return text
}

// get reads what a part has measured, if it is done.
func (p *progress) get(name string, into any) bool {
	text, ok := p.done[name]
	if ok {
		must.OK(json.Unmarshal(text, into))
	}
	return ok
}

// put notes that a part is done.
func (p *progress) put(name string, value any) { must.Get(p.file.Write(progressText(name, value))) }

func progressText(name string, value any) []byte {
	return append(must.Get(json.Marshal(progressLine{name, must.Get(json.Marshal(value))})), '\n')
}

func (p *progress) close() { must.OK(p.file.Close()) }
