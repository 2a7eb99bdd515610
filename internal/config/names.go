package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Warning is something about a setting that does not stop the start.
type Warning struct {
	Variable string // name, with prefix
	What     string // completes the sentence that begins with the name
	Do       string // what to do about it; only [Config.Remarks] say that beside
}

// String is one line.
func (w Warning) String() string { return w.Variable + " " + w.What }

// testPrefix begins the names by which the tests are told about servers.
const testPrefix = Prefix + "TEST_"

// kubernetes sets variables for every service of a namespace; for one named rollbackd they have our prefix.
var kubernetes = regexp.MustCompile(`_SERVICE_|_PORT$|_PORT_[0-9]+_(TCP|UDP|SCTP)`)

// unknownNames warns of names with our prefix that are no setting, most likely a misspelling of one: the setting meant
// is then at its default. It never shows the value, which may be a secret under a misspelt name.
func unknownNames(ours map[string]string, settings []*Variable) []Warning {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	var warnings []Warning
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		known := slices.Contains(names, name) || slices.Contains(names, strings.TrimSuffix(name, fileSuffix))
		if !known && !strings.HasPrefix(name, testPrefix) && !kubernetes.MatchString(name) {
			warnings = append(warnings, Warning{
				Variable: name, What: "is no setting and has no effect; the nearest one is " + nearest(name, names),
			})
		}
	}
	return warnings
}

// nearest is the known name with the fewest edits to name; the first of several. A name that ends in _FILE is compared
// without it and gets it back.
func nearest(name string, known []string) string {
	stem, isFile := strings.CutSuffix(name, fileSuffix)
	best := slices.MinFunc(known, func(a, b string) int { return edits(stem, a) - edits(stem, b) })
	if isFile {
		best += fileSuffix
	}
	return best
}

// edits counts the insertions, deletions and replacements that make b out of a.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		replaced := row[0]
		row[0] = i + 1
		for j := range len(b) {
			if a[i] != b[j] {
				replaced++
			}
			replaced, row[j+1] = row[j+1], min(replaced, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
