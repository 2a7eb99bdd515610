package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
func openProgress(path string, what any, resume bool) (p *progress, err error) {
	p = &progress{done: map[string]json.RawMessage{}}
	head, err := progressText("what", what)
	if err != nil {
		return nil, err
	}
	text := head
	if resume {
		before, err := os.ReadFile(path)
		if err == nil {
			text, err = p.read(before, head)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("resume from %s: %w", path, err)
		}
	}
	// What an end in the middle of a line has left goes.
	err = os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err == nil {
		p.file, err = os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("write the progress: %w", err)
	}
	return p, nil
}

// read takes all whole lines, and returns them.
func (p *progress) read(text, head []byte) ([]byte, error) {
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	if !bytes.HasPrefix(text, head) {
		first, _, _ := bytes.Cut(text, []byte("\n"))
		return nil, fmt.Errorf("it is of another run:\n%s\nand not of\n%swithout -resume it is begun anew", first, head)
	}
	for line := range bytes.Lines(text[len(head):]) {
		var l progressLine
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, fmt.Errorf("read a line: %w", err)
		}
		p.done[l.Name] = l.Value
	}
	return text, nil
}

// get reads what a part has measured, if it is done.
func (p *progress) get(name string, into any) (bool, error) {
	text, ok := p.done[name]
	if !ok {
		return false, nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return false, fmt.Errorf("read the progress of %s: %w", name, err)
	}
	return true, nil
}

// put notes that a part is done.
func (p *progress) put(name string, value any) error {
	text, err := progressText(name, value)
	if err == nil {
		_, err = p.file.Write(text)
	}
	return err
}

func progressText(name string, value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err == nil {
		text, err = json.Marshal(progressLine{name, text})
	}
	if err != nil {
		return nil, fmt.Errorf("write the progress of %s: %w", name, err)
	}
	return append(text, '\n'), nil
}

func (p *progress) close() error { return p.file.Close() }
