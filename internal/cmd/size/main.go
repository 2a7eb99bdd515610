// Command size counts the lines of code of each folder and sets them beside their budgets, which stand in the tables of
// ARCHITECTURE.md: it keeps the program as small as its makers can hold. It exits with 1 if a budget is exceeded. It
// reads what git tracks, and must not count what others wrote or what a program generated for readers (golden files,
// licenses, results).
package main

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"log"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// count is what a part or a folder amounts to.
type count struct{ lines, tokens int }

// The sums with a budget of their own.
const product, rig, tests, words = "product", "rig", "tests", "words"

// rigFolders hold what tests, measures, shows or packs the product.
var rigFolders = []string{
	"internal/test/", "internal/cmd/", "bench/", "lock/locktest/", "deploy/", "tools/", "scripts/", "docs/", "Makefile",
}

func main() {
	log.SetFlags(0)
	if err := run("ARCHITECTURE.md"); err != nil {
		log.Fatal("size: ", err)
	}
}

func run(budgets string) error {
	limits, err := readBudgets(budgets)
	if err != nil {
		return err
	}
	files, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		return fmt.Errorf("list the files: %w", err)
	}
	sums := map[string]count{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(files), "\x00"), "\x00") {
		part := partOf(name)
		if part == "" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		c := measure(name, text)
		for _, l := range limits {
			if l.name == part || part == product && strings.HasPrefix(name, l.name+"/") {
				was := sums[l.name]
				sums[l.name] = count{was.lines + c.lines, was.tokens + c.tokens}
			}
		}
	}
	return report(limits, sums)
}

// partOf is the part that a file belongs to; none for what is generated, and for what is written down as an example.
func partOf(name string) string {
	switch ext := path.Ext(name); {
	case strings.Contains(name, "testdata/"), slices.Contains([]string{"docs/tried.md", "bench/RESULTS.md",
		"bench/sid/RESULTS.md"}, name):
		return ""
	case ext == ".md":
		return words
	case !slices.Contains([]string{".go", ".sql", ".html", ".css", ".js", ".sh", ".py", ".yaml"}, ext) &&
		name != "Makefile":
		return ""
	case strings.HasSuffix(name, "_test.go"):
		return tests
	case slices.ContainsFunc(rigFolders, func(folder string) bool { return strings.HasPrefix(name, folder) }):
		return rig
	}
	return product
}

// generated is what stands in a page of Markdown and is made from code or results; internal/test/repo holds it there.
var generated = regexp.MustCompile(`(?s)<!-- (settings|rights|figures|summary|tests): .*?<!-- end of `)

// measure counts lines that hold code, and Go's tokens; of Markdown, words that somebody wrote.
func measure(name string, text []byte) (c count) {
	switch path.Ext(name) {
	case ".md":
		c.lines = len(bytes.Fields(generated.ReplaceAll(text, nil)))
		return c
	case ".go":
		return measureGo(text)
	}
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && !bytes.HasPrefix(line, []byte("#")) && !bytes.HasPrefix(line, []byte("-- ")) &&
			!bytes.HasPrefix(line, []byte("//")) {
			c.lines++
		}
	}
	return c
}

func measureGo(text []byte) (c count) {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	last := 0
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return c
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		c.tokens++
		first := file.Line(pos)
		end := first + strings.Count(lit, "\n")
		c.lines += end - max(first, last+1) + 1
		last = max(last, end)
	}
}

// limit is the budget of a part or a folder.
type limit struct {
	name string
	most int
}

// readBudgets reads the rows of all tables whose first cell is a name in backquotes and whose last one is a number.
func readBudgets(name string) (limits []limit, err error) {
	page, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for _, row := range rowOfTable.FindAllStringSubmatch(string(page), -1) {
		most, err := strconv.Atoi(strings.ReplaceAll(row[2], ",", ""))
		if err != nil {
			return nil, fmt.Errorf("%s: the budget of %s: %w", name, row[1], err)
		}
		limits = append(limits, limit{row[1], most})
	}
	return limits, nil
}

var rowOfTable = regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\|.*\\| ([0-9,]+) \\|$")

func report(limits []limit, sums map[string]count) error {
	over := 0
	fmt.Printf("%-28s %8s %8s %8s\n", "", "now", "budget", "tokens")
	for _, l := range limits {
		now, mark := sums[l.name], ""
		if now.lines > l.most {
			over++
			mark = fmt.Sprintf("  %d over", now.lines-l.most)
		}
		fmt.Printf("%-28s %8d %8d %8d%s\n", l.name, now.lines, l.most, now.tokens, mark)
	}
	if over > 0 {
		return fmt.Errorf("%d budgets are exceeded", over)
	}
	return nil
}
