package sql

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	directive  = regexp.MustCompile(`(?i)^(once|for\s+each|expect|allow)\b`)
	eachForm   = regexp.MustCompile(`(?i)^for\s+each\s+(/\S*)$`)
	callForm   = regexp.MustCompile(`(?i)^allow\s+call$`)
	expectForm = regexp.MustCompile(`(?i)^expect\s+(\d+(?:\s+or\s+\d+)*)(\s+or\s+more)?\s*,` +
		`\s*else\s+(done|retry|permanent)\s*(?::(.*))?$`)
	digits = regexp.MustCompile(`\d+`)
)

// comment obeys one that is a directive; all others are for people. One that is almost a directive is refused, because
// nobody would see that it has no effect.
func (p *parser) comment(t token) error {
	first := strings.ToLower(directive.FindString(t.text))
	before := p.text[:t.start]
	switch {
	case first == "":
		return p.almost(t)
	case !strings.HasPrefix(p.text[t.start:], "--"):
		return fmt.Errorf("a comment that begins with %q must be written with two dashes, or begin with another word", first)
	case first == "expect":
		return p.expect(t)
	case len(p.open) > 0:
		return fmt.Errorf("%q stands inside a statement: is a semicolon missing before it?", "-- "+first)
	case strings.TrimSpace(before[strings.LastIndexByte(before, '\n')+1:]) != "":
		return fmt.Errorf("%q must stand on a line of its own", "-- "+first)
	}
	p.last = nil
	m := eachForm.FindStringSubmatch(t.text)
	switch {
	case strings.EqualFold(t.text, "once"):
		p.file.sections = append(p.file.sections, &section{})
	case m != nil:
		list, err := parsePointer(m[1][1:])
		if err != nil {
			return err
		}
		p.file.sections = append(p.file.sections, &section{each: true, list: list})
	case !callForm.MatchString(t.text):
		return fmt.Errorf(`%q is none of "-- once", "-- for each /POINTER", "-- allow call"`, "-- "+t.text)
	case p.file.count() > 0:
		return errors.New(`"-- allow call" must stand before the first statement`)
	default:
		p.file.allowCall = true
	}
	return nil
}

func (p *parser) expect(t token) error {
	m := expectForm.FindStringSubmatch(t.text)
	if m == nil {
		return fmt.Errorf(`%q is not of the form "-- expect 1, else done|retry|permanent: text"`, "-- "+t.text)
	}
	e := &expectation{at: t.at, orMore: m[2] != "", other: Verdict(strings.ToLower(m[3])), text: strings.TrimSpace(m[4])}
	for _, number := range digits.FindAllString(m[1], -1) {
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil {
			return fmt.Errorf("%s is too large a number of rows", number)
		}
		e.counts = append(e.counts, n)
	}
	of := &p.early
	if len(p.open) == 0 {
		if p.last == nil {
			return errors.New(`"-- expect" stands behind no statement`)
		}
		of = &p.last.expect
	}
	if *of != nil {
		return errors.New(`"-- expect" stands behind this statement already`)
	}
	*of = e
	return nil
}

var (
	// beginning is the first two words of a comment, whatever stands before and between them.
	beginning = regexp.MustCompile(`^[^\pL\pN]*(\pL+)[^\pL\pN]*(\pL*)`)
	expecting = regexp.MustCompile(`(?i)\bexpects?\s+\d+\b`)
)

// almost refuses a comment that looks like a directive: it begins with a word of one, or is one letter away from one.
func (p *parser) almost(t token) error {
	m := beginning.FindStringSubmatch(strings.ToLower(t.text))
	if m == nil {
		return nil
	}
	first, both, near := m[1], m[1]+m[2], ""
	switch {
	case strings.HasPrefix(first, "expect"), first == "else", nearly(first, "expect"), expecting.MatchString(t.text):
		near = "expect"
	case first == "for", first == "each", nearly(first, "foreach"), nearly(both, "foreach"):
		near = "for each"
	case first == "once", both == first && nearly(first, "once"):
		near = "once"
	case nearly(first, "allow"):
		near = "allow"
	default:
		return nil
	}
	text := strings.Join(strings.Fields(p.text[t.start:t.end]), " ")
	return fmt.Errorf(`%q is almost %q and would have no effect: write it as it is meant, or, if it is for people, `+
		`in other words`, shorten(text), "-- "+near)
}

// nearly reports whether a is b, or one letter more, less, another or changed with its neighbour makes it so.
func nearly(a, b string) bool {
	a, b = a+".", b+"." // so that the last letter is none
	for i := range b {
		here, begins := strings.CutPrefix(a, b[:i])
		_, letter := utf8.DecodeRuneInString(here)
		next, want := here[letter:], b[i:]
		if begins && (next == want || next == want[1:] || here == want[1:] ||
			len(want) > 1 && here == want[1:2]+want[:1]+want[2:]) {
			return true
		}
	}
	return false
}
