package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) {
	stack.Main(m, func() error { return closeChromium() }, program.Remove)
}

// patience is how long a test waits for something that takes no time on an idle machine.
const patience = time.Minute

// chromium is the one browser of this test process, started at first use. Each test has a profile of its own in it.
var chromium = sync.OnceValues(startChromium)

// closeChromium ends it, if it was started.
var closeChromium = func() error { return nil }

// startChromium starts it with a profile in a new folder, which chromedp removes. It asks nothing of any network: what
// is not on the loopback address cannot even be looked up.
func startChromium() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("make test-browser installs it: %w", err)
	}
	home, err := os.MkdirTemp("", "rollbackd-chromium-")
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], // no-sandbox is added for root, who cannot have one
		chromedp.ExecPath(path), chromedp.NoInheritEnv, chromedp.Env("HOME="+home, "PATH="+os.Getenv("PATH")),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-domain-reliability", true),
		chromedp.Flag("no-pings", true), chromedp.Flag("no-proxy-server", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"),
		chromedp.WindowSize(wide, high),
	)
	all, release := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(all)
	closeChromium = func() error {
		ending, stop := context.WithTimeout(ctx, patience)
		defer stop()
		err := chromedp.Cancel(ending) // it closes by itself; after the time it is killed
		cancel()
		release()
		return errors.Join(err, os.RemoveAll(home))
	}
	if err := chromedp.Do(ctx); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return ctx, nil
}
