// Command size counts the lines of code of each folder and sets them beside what the tables of ARCHITECTURE.md say: a
// ceiling, which is the size it had, and a budget, which it is to come down to. So it keeps the program as small as its
// makers can hold. With -check it exits with 1 if something is above its ceiling. It reads what git tracks, and must
// not count what others wrote or what a program generated for readers (golden files, licenses, results).
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"log"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The sums with a budget of their own.
const product, rig, tests, words = "product", "rig", "tests", "words"

// rigFolders hold what tests, measures, shows or packs the product.
var rigFolders = []string{
	"internal/test/", "internal/cmd/", "bench/", "lock/locktest/", "deploy/", "tools/", "scripts/", "docs/", "Makefile",
}

func main() {
	log.SetFlags(0)
	check := flag.Bool("check", false, "fail if a folder or a part is above its ceiling")
	flag.Parse()
	if err := run("ARCHITECTURE.md", *check); err != nil {
		log.Fatal("size: ", err)
	}
}

func run(page string, check bool) error {
	limits, err := readLimits(page)
	if err != nil {
		return err
	}
	files, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		return fmt.Errorf("list the files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(files), "\x00"), "\x00") {
		part := partOf(name)
		if part == "" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		lines, tokens := measure(name, text)
		for _, l := range limits {
			if l.name == part || part == product && strings.HasPrefix(name, l.name+"/") {
				l.lines += lines
				l.tokens += tokens
			}
		}
	}
	return report(limits, check)
}

// partOf is the part that a file belongs to; none for what is generated, and for what is written down as an example.
func partOf(name string) string {
	switch ext := path.Ext(name); {
	case strings.Contains(name, "testdata/"), slices.Contains([]string{"docs/tried.md", "bench/RESULTS.md",
		"bench/sid/RESULTS.md"}, name):
		return ""
	case ext == ".md":
		return words
	case !slices.Contains([]string{".go", ".sql", ".html", ".css", ".js", ".sh", ".py", ".yaml", ".tmpl", ".conf", ".cnf",
		".cfg"}, ext) && name != "Makefile":
		return ""
	case strings.HasSuffix(name, "_test.go"):
		return tests
	case slices.ContainsFunc(rigFolders, func(folder string) bool { return strings.HasPrefix(name, folder) }):
		return rig
	}
	return product
}

// generated is what stands in a page of Markdown and is made from code or results, or is a file's text. Package
// internal/test/repo holds it there.
var generated = regexp.MustCompile("(?s)<!-- (settings|rights|figures|summary|tests): .*?<!-- end of |" +
	"<!-- (diagram|program|example): .*?\n```.*?\n```\n")

// measure counts lines that hold code, and Go's tokens; of Markdown, words that somebody wrote.
func measure(name string, text []byte) (lines, tokens int) {
	switch path.Ext(name) {
	case ".md":
		return len(bytes.Fields(generated.ReplaceAll(text, nil))), 0
	case ".go":
		return measureGo(text)
	}
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && !bytes.HasPrefix(line, []byte("#")) && !bytes.HasPrefix(line, []byte("-- ")) &&
			!bytes.HasPrefix(line, []byte("//")) {
			lines++
		}
	}
	return lines, 0
}

func measureGo(text []byte) (lines, tokens int) {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	last := 0
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return lines, tokens
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		tokens++
		first := file.Line(pos)
		end := first + strings.Count(lit, "\n")
		lines += end - max(first, last+1) + 1
		last = max(last, end)
	}
}

// limit is how large a part or a folder may be now, what it is to come down to, and what it amounts to.
type limit struct {
	name                           string
	ceiling, budget, lines, tokens int
}

// readLimits reads the rows of all tables whose first cell is a name in backquotes and whose last two are numbers.
func readLimits(name string) (limits []*limit, err error) {
	page, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for _, row := range rowOfTable.FindAllStringSubmatch(strings.ReplaceAll(string(page), ",", ""), -1) {
		l := &limit{name: row[1]}
		_, _ = fmt.Sscan(row[2]+" "+row[3], &l.ceiling, &l.budget) // they are digits
		limits = append(limits, l)
	}
	return limits, nil
}

var rowOfTable = regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\|.*\\| ([0-9]+) \\| ([0-9]+) \\|$")

func report(limits []*limit, check bool) error {
	over := 0
	fmt.Printf("%-28s %8s %8s %8s %8s\n", "", "now", "ceiling", "budget", "tokens")
	for _, l := range limits {
		mark := ""
		if l.lines > l.ceiling {
			over++
			mark = fmt.Sprintf("  %d above its ceiling", l.lines-l.ceiling)
		}
		fmt.Printf("%-28s %8d %8d %8d %8d%s\n", l.name, l.lines, l.ceiling, l.budget, l.tokens, mark)
	}
	if check && over > 0 {
		return fmt.Errorf("above their ceilings in ARCHITECTURE.md: %d", over)
	}
	return nil
}
