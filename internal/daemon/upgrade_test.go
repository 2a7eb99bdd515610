package daemon_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// upgradeEnv asks for the test of two builds, whose older one is compiled for it: make test-upgrade.
const upgradeEnv = "ROLLBACKD_TEST_UPGRADE"

// former builds the program as it was at the commit that testdata/former-release names, the last before a migration.
func former(t *testing.T) string {
	t.Helper()
	if os.Getenv(upgradeEnv) == "" {
		t.Skipf("it compiles an older version of the program, and so runs only with %s=1: make test-upgrade", upgradeEnv)
	}
	text := require.Get(os.ReadFile("testdata/former-release"))(t)
	commit := strings.TrimSpace(string(text))
	in := func(dir, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	out, err := exec.CommandContext(t.Context(), "git", "cat-file", "-e", commit+"^{commit}").CombinedOutput()
	if err != nil {
		t.Skipf("this clone does not hold the commit %s of the former version (git fetch --unshallow): %s", commit, out)
	}
	dir := t.TempDir()
	source, archive := filepath.Join(dir, "source"), filepath.Join(dir, "source.tar")
	require.OK(t, os.Mkdir(source, 0o755))
	top := require.Get(filepath.Abs(filepath.Join("..", "..")))(t)
	in(top, "git", "archive", "-o", archive, commit)
	in(source, "tar", "-xf", archive)
	path := filepath.Join(dir, "former")
	in(source, "go", "build", "-buildvcs=false", "-o", path, "./cmd/consumer")
	return path
}

// Given a fleet of the former version at work, when the new version migrates beside it, runs beside it, is taken back,
// and comes again for good, while messages keep coming, then both have worked, every message takes effect once and only
// those are dead letters that nobody can read. Letters that one version has made are replayed by the other, when the
// orders have come that they lacked. The migration is one that changes the tables of the effect.
func TestTwoVersionsWorkSideBySideOverAMigration(t *testing.T) {
	old := former(t)
	const steps, each, some = 5, 1500, 20
	w := emptyWorld(t, "BATCH_SIZE", "50", "LANES", "2", "RETRY_DELAYS", "200ms,500ms", "MAX_ATTEMPTS", "3")
	migrated := func(path string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		require.Get(program.Run(ctx, path, w.environ(), "migrate"))(t)
	}
	started := func(path string) *program.Process {
		t.Helper()
		return w.startProcess(program.Options{Path: path, Args: []string{"run"}, Env: w.environ(), Log: w.logs})
	}
	settled := func(p *program.Process) int {
		t.Helper()
		metrics := w.metrics(p)
		return metrics.Settled()
	}
	columns := func() int {
		t.Helper()
		return w.count("SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()")
	}

	// given
	migrated(old)
	require.OK(t, oracle.Audit(t.Context(), w.db))
	orders := w.open(steps * each)
	early, late := shop.Orders(w.rng, "early", some, skus), shop.Orders(w.rng, "late", some, skus) // nobody knows them yet
	published := 0
	publish := func(more ...oracle.Sent) {
		t.Helper()
		part := orders[published*each : (published+1)*each]
		published++
		w.publish(shop.Repeat(w.rng, append(w.route.Rollbacks(part), more...), .1)...)
	}
	failing := func(unknown []shop.Order) []oracle.Sent {
		sent := w.route.Rollbacks(unknown)
		for _, o := range unknown {
			cut := w.route.Message("cut-"+o.SN, []byte(`{"order_sn":`))
			sent = append(sent, oracle.Sent{Publishing: cut, Fate: oracle.ToDie(dedup.ReasonMalformed)})
		}
		return sent
	}
	// replayed makes the orders known, and has all letters replayed by one of the versions.
	replayed := func(path string, unknown []shop.Order) {
		t.Helper()
		is(w, "messages are exhausted",
			w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3 AND reason = 'exhausted'"), some)
		require.OK(t, shop.SeedReserved(t.Context(), w.db, unknown))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		require.Get(program.Run(ctx, path, w.environ(), "dlq", "replay", "--all", "--no-wait"))(t)
	}
	first := started(old)
	publish(failing(early)...)
	w.ended(each + 2*some)

	// when: the new one migrates while the old one works
	before := columns()
	publish()
	migrated(program.Shared(t))
	if after := columns(); after <= before {
		t.Fatalf("the migration changes nothing: %d columns before and %d after; name a newer commit's parent", before, after)
	}
	w.ended(2*each + 2*some)
	// side by side
	fresh := started(program.Shared(t))
	w.eventually("both consume", func() bool { return w.broker.Consumers(w.config().Queue) >= 4 })
	alone := settled(first)
	replayed(program.Shared(t), early)
	publish(failing(late)...)
	w.ended(3*each + 4*some)
	if byOld, byNew := settled(first)-alone, settled(fresh); byOld == 0 || byNew == 0 {
		t.Errorf("side by side the old one settled %d deliveries and the new one %d: one of them did nothing", byOld, byNew)
	} else {
		t.Logf("side by side the old version settled %d deliveries, the new one %d", byOld, byNew)
	}
	// back: the old one goes on alone on the new tables, also when it starts anew
	w.stop(fresh, first)
	first = started(old)
	replayed(old, late)
	publish()
	w.ended(4*each + 4*some)
	// for good
	fresh = started(program.Shared(t))
	publish()
	w.stop(first)
	w.ended(5*each + 4*some)
	w.stop(fresh)

	// then
	w.judged(steps*each+2*some, 2*some, oracle.Allowance{})
}
