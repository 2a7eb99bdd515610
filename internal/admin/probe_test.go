package admin

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Given a daemon in each of its states, then a probe says whether it is alive and whether it is ready, and why not.
func TestAProbeTellsAliveFromReady(t *testing.T) {
	for name, c := range map[string]struct {
		health       Readiness
		alive, ready error
		why          string // in the errors
	}{
		"consumes":         {Readiness{Consuming: true}, nil, nil, ""},
		"waits":            {Readiness{Waiting: []string{"mysql: refused"}}, nil, ErrNotReady, "mysql: refused"},
		"drains":           {Readiness{Consuming: true, Draining: true}, nil, ErrNotReady, "drains"},
		"starts":           {Readiness{}, nil, ErrNotReady, NotConnected},
		"is stuck":         {Readiness{Consuming: true, Stuck: "lane 2 stands"}, ErrStuck, nil, "lane 2 stands"},
		"takes, with less": {Readiness{Consuming: true, Degraded: []string{"backstop"}}, nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			addr := "127.0.0.1:" + serve(t, "127.0.0.1:0", c.health)
			alive, ready := Alive(t.Context(), addr, time.Minute), Ready(t.Context(), addr, time.Minute)
			if !errors.Is(alive, c.alive) || !errors.Is(ready, c.ready) || c.alive == nil && alive != nil ||
				c.ready == nil && ready != nil {
				t.Errorf("alive: %v, want %v; ready: %v, want %v", alive, c.alive, ready, c.ready)
			}
			for _, err := range []error{alive, ready} {
				if err != nil && !strings.Contains(err.Error(), c.why) {
					t.Errorf("the error %q does not say %q", err, c.why)
				}
			}
		})
	}
}

// Given somebody who takes connections and never answers, then a probe ends in its time.
func TestAProbeEndsInItsTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	err = Alive(t.Context(), l.Addr().String(), 200*time.Millisecond)
	if took := time.Since(began); !errors.Is(err, ErrSilent) || took > 20*time.Second {
		t.Errorf("%v after %v, want ErrSilent after 200ms", err, took)
	}
}

// Given another server's page at the daemon's address, then its success is not taken for the daemon's life.
func TestAProbeKnowsADaemonFromAStranger(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("welcome"))
	}))
	defer other.Close()
	addr := other.Listener.Addr().String()
	for _, ask := range []error{Alive(t.Context(), addr, time.Minute), Ready(t.Context(), addr, time.Minute)} {
		if !errors.Is(ask, ErrStranger) {
			t.Errorf("%v, want ErrStranger", ask)
		}
	}
}
