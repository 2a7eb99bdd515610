package mysqldb

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// place is an error of a server and where it goes. Names are those that releases of the server have given it.
type place struct {
	number uint16
	names  string
	state  string
	fault  string
}

const mostForClients = 9999 // numbers above this stand in the server's log alone

// golden is a list that a person can read and judge.
func golden(from sayer) string {
	return filepath.Join("testdata", strings.ToLower(string(from))+".txt")
}

func readPlaces(t *testing.T, from sayer) map[uint16]place {
	t.Helper()
	text, err := os.ReadFile(golden(from))
	if err != nil && !(*update && errors.Is(err, os.ErrNotExist)) {
		t.Fatal(err)
	}
	places := map[uint16]place{}
	for line := range strings.Lines(string(text)) {
		var p place
		if _, err := fmt.Sscan(line, &p.number, &p.names, &p.state, &p.fault); err != nil {
			t.Fatalf("%s: %q: %v", golden(from), line, err)
		}
		assert.Is(t, places[p.number].number, 0, "%s: %d stands there twice", golden(from), p.number)
		p.fault = strings.TrimSpace(line[strings.LastIndex(line, p.state)+len(p.state):])
		places[p.number] = p
	}
	return places
}

// Whoever makes a change that sends an error elsewhere sees it in a golden file. Read there what it means.
func TestEachErrorOfBothServersHasItsPlace(t *testing.T) {
	for _, from := range []sayer{mySQL, mariaDB} {
		places := readPlaces(t, from)
		assert.AtLeast(t, len(places), 1000, "%s has errors", golden(from))
		for n, p := range places {
			if got := faultOf(from, n, p.state).String(); got != p.fault {
				if p.fault = got; !*update {
					t.Errorf("%s: %d %s goes to %q, and the file says %q", from, n, p.names, got, p.fault)
				}
				places[n] = p
			}
		}
		if *update {
			writePlaces(t, from, places)
		}
	}
}

func writePlaces(t *testing.T, from sayer, places map[uint16]place) {
	t.Helper()
	var b bytes.Buffer
	for _, n := range slices.Sorted(maps.Keys(places)) {
		p := places[n]
		fmt.Fprintf(&b, "%d %s %s %s\n", p.number, p.names, p.state, p.fault)
	}
	require.OK(t, os.WriteFile(golden(from), b.Bytes(), 0o600))
}

// A later release has errors that nobody has looked at: the test fails on it, and -update adds them.
func TestTheServerKnowsNoErrorWithoutAPlace(t *testing.T) {
	w := newWorld(t)
	conn := require.Get(w.pool.Conn(t.Context()))(t)
	defer conn.Close()
	var from sayer
	require.OK(t, conn.Raw(func(raw any) error { from = raw.(*watchedConn).from; return nil }))
	known := w.errorsOfMySQL
	if from == mariaDB {
		known = w.errorsOfMariaDB
	}
	places := readPlaces(t, from)
	for _, p := range known() {
		was, ok := places[p.number]
		names := strings.Split(was.names, "|")
		switch {
		case !ok:
			p.fault = faultOf(from, p.number, p.state).String()
			places[p.number] = p
		case !slices.Contains(names, p.names):
			was.names += "|" + p.names
			places[p.number] = was
		case from == mySQL && was.state != p.state:
			t.Errorf("%d %s has SQLSTATE %s, and the file says %s", p.number, p.names, p.state, was.state)
		default:
			continue
		}
		if !*update {
			t.Errorf("%s says %d %s, and %s does not have it: add it with -update, and look where it goes", from, p.number,
				p.names, golden(from))
		}
	}
	if *update {
		writePlaces(t, from, places)
	}
}

func (w *world) errorsOfMySQL() (all []place) {
	w.t.Helper()
	rows := require.Get(w.pool.Query("SELECT error_number, error_name, sql_state FROM " +
		"performance_schema.events_errors_summary_global_by_error WHERE error_number BETWEEN 1 AND " +
		strconv.Itoa(mostForClients)))(w.t)
	defer rows.Close()
	for rows.Next() {
		var p place
		require.OK(w.t, rows.Scan(&p.number, &p.names, &p.state))
		all = append(all, p)
	}
	err := rows.Err()
	require.That(w.t, err == nil && len(all) >= 1000, "%d errors, %v", len(all), err)
	return all
}

var perrorLine = regexp.MustCompile(`(?m)^MariaDB error code (\d+) \((\w+)\)`)

// errorsOfMariaDB asks perror, which does not know their SQLSTATE: those in the golden file are of the server's
// errmsg-utf8.txt.
func (w *world) errorsOfMariaDB() (all []place) {
	w.t.Helper()
	tree := os.Getenv(stack.EnvTree)
	const program = "/usr/bin/perror"
	if _, err := os.Stat(filepath.Join(tree, program)); err != nil {
		w.t.Skip("MariaDB's perror is not installed: ", err)
	}
	cmd := exec.CommandContext(w.t.Context(), program)
	cmd.Err, cmd.SysProcAttr = nil, &syscall.SysProcAttr{Chroot: tree}
	cmd.Dir = "/"
	for n := 1; n <= 5000; n++ {
		cmd.Args = append(cmd.Args, strconv.Itoa(n))
	}
	text, _ := cmd.Output() // it fails for the numbers that are no errors
	for _, m := range perrorLine.FindAllStringSubmatch(string(text), -1) {
		n := require.Get(strconv.ParseUint(m[1], 10, 16))(w.t)
		if name := m[2]; !strings.HasPrefix(name, "ER_UNUSED_") && !strings.HasPrefix(name, "ER_MYSQL_") {
			all = append(all, place{number: uint16(n), names: name, state: "HY000"})
		}
	}
	require.That(w.t, len(all) >= 1000, "perror knows %d errors", len(all))
	return all
}
