package ground

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/program"
)

func TestABuildIsAFolderAProgramOrARevision(t *testing.T) {
	module := must.Get(program.Module(t.Context()))
	g := &Ground{Ctx: t.Context(), module: module, dir: t.TempDir()}
	script := filepath.Join(t.TempDir(), "program")
	must.OK(os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755))
	names := []string{".", module, script}
	if _, err := g.output(module, "git", "rev-parse", "HEAD"); err == nil {
		names = append(names, "HEAD")
	}
	for _, name := range names {
		g.build(name)
		b := g.Builds[len(g.Builds)-1]
		out, err := exec.Command(b.Binary, "version").CombinedOutput()
		assert.That(t, err == nil && len(b.Sum()) == 64, "%s: %+v: %v\n%s", name, b, err, out)
	}
	assert.Is(t, g.Builds[2].Binary, script, "the program")
	assert.Has(t, fmt.Sprint(must.Catch(func() { g.build("no-such-thing") })), "revision", "what is nothing")
}

func TestOrdersHoldTwoDifferentGoods(t *testing.T) {
	for _, of := range []int64{2, 10, 1000} {
		for n := range int64(20_000) {
			sku1, q1, sku2, q2 := goods(n, of)
			if sku1 == sku2 || min(sku1, sku2) < 1 || max(sku1, sku2) > of || min(q1, q2) < 1 || q1 > 5 || q2 > 3 {
				t.Fatalf("order %d of %d goods holds %d×%d and %d×%d", n, of, q1, sku1, q2, sku2)
			}
		}
	}
}

func TestKeysAreUUIDsAndNeverTheSameTwice(t *testing.T) {
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for _, seed := range []uint64{1, 2, 60} {
		for n := range int64(100_000) {
			k := Key(seed, n)
			if seen[k] || !uuid.MatchString(k) {
				t.Fatalf("key %q of order %d, seed %d: seen before %v", k, n, seed, seen[k])
			}
			seen[k] = true
		}
	}
}

func TestABodyIsWhatTheProductReads(t *testing.T) {
	const want = `{"order_sn":"20261121-00000007","reason":"payment_timeout",` +
		`"items":[{"sku_id":434,"quantity":3},{"sku_id":271,"quantity":2}]}`
	plain := body(7, 1000)
	for _, size := range []int{0, len(want), 200, 256 << 10} { // which a field that nobody reads makes it as large as
		large := string(padded(plain, size))
		read, note, _ := strings.Cut(large, `,"note":"`)
		if note != "" {
			read += "}"
		}
		assert.That(t, read == want && len(large) == max(size, len(want)) && json.Valid([]byte(large)),
			"%d bytes, want %d: %.300s", len(large), size, large)
	}
}
