package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// progress is a file with what each part of a run has measured, so that a run that was ended can go on. It says what
// is measured: only the same goes on.
type progress struct {
	path string
	What json.RawMessage
	Done map[string]json.RawMessage
}

// resumable opens the progress of a run over these builds and whatever else tells it from others.
func (s settings) resumable(name string, builds []ground.Build, of any, resume bool) *progress {
	var sums []string
	for _, b := range builds {
		sums = append(sums, b.Sum())
	}
	return openProgress(filepath.Join("out", name), map[string]any{"builds": sums, "of": of, "settings": s}, resume)
}

// openProgress begins a file anew or, to resume, reads what is there.
func openProgress(path string, what any, resume bool) *progress {
	p := &progress{path: path, What: must.Get(json.Marshal(what)), Done: map[string]json.RawMessage{}}
	before, err := os.ReadFile(path)
	if resume && !errors.Is(err, fs.ErrNotExist) {
		must.OK(err)
		var there progress
		must.OK(json.Unmarshal(before, &there))
		if string(there.What) != string(p.What) {
			must.OK(fmt.Errorf("it is of another run: %s\nand not of %s; without -resume it is begun anew", there.What, p.What))
		}
		p.Done = there.Done
	}
	p.save()
	return p
}

// get reads what a part has measured, if it is done.
func (p *progress) get(name string, into any) bool {
	text, ok := p.Done[name]
	if ok {
		must.OK(json.Unmarshal(text, into))
	}
	return ok
}

// put notes that a part is done.
func (p *progress) put(name string, value any) {
	p.Done[name] = must.Get(json.Marshal(value))
	p.save()
}

// save writes the file. An end in the middle leaves the one before.
func (p *progress) save() {
	must.OK(os.MkdirAll(filepath.Dir(p.path), 0o755))
	must.OK(os.WriteFile(p.path+".new", must.Get(json.Marshal(p)), 0o644))
	must.OK(os.Rename(p.path+".new", p.path))
}
