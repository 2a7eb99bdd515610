package config

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Setting is one setting as it is in effect.
type Setting struct {
	Name   string `json:"name"`           // of the variable, with prefix
	Value  string `json:"value"`          // secrets masked
	Source Source `json:"source"`         // where the value came from
	File   string `json:"file,omitempty"` // the file's name, when Source is FromFile
}

// Settings lists the effective configuration in the order of the documentation, secrets masked. It is empty for a
// Config that did not come from Load.
func (c Config) Settings() []Setting {
	var settings []Setting
	for _, s := range c.settings {
		settings = append(settings, Setting{Name: s.Name, Value: s.show(s.raw), Source: s.from, File: s.path})
	}
	return settings
}

// Shown is the value of the setting with this key, the name without its prefix; its secrets masked.
func (c Config) Shown(key string) string {
	if s := c.of(key); s != nil {
		return s.show(s.raw)
	}
	return "not set"
}

// String has a line NAME=value per setting, secrets masked.
func (c Config) String() string {
	var b strings.Builder
	for _, s := range c.Settings() {
		fmt.Fprintf(&b, "%s=%s\n", s.Name, s.Value)
	}
	return b.String()
}

// GoString is String, so that %#v shows no secret either.
func (c Config) GoString() string { return c.String() }

// MarshalJSON is the list of Settings, secrets masked.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.Settings()) }

// Markdown is the table of all settings for the documentation, with a heading line and no surrounding text.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| variable | default | allowed | meaning |\n|---|---|---|---|\n")
	for _, v := range Variables() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", v.Name, v.defaultCell(), cell(v.Range), cell(v.Meaning))
	}
	return b.String()
}

func (v Variable) defaultCell() string {
	switch {
	case v.Required:
		return strings.TrimSpace("required " + v.by)
	case v.Default == "":
		return "none"
	case v.computed != nil:
		return cell(v.Default)
	}
	return "`" + v.Default + "`"
}

// cell escapes what would end a table's cell.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
