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
func unknownNames(ours map[string]string, settings []*setting) []Warning {
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

// edits counts the insertions, deletions, replacements and swaps of neighbours that make b out of a.
func edits(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			rows[i][j] = min(replace, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
