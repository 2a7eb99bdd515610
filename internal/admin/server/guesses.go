package server

import (
	"crypto/sha256"
	"fmt"
	"hash/maphash"
	"math"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// How many wrong tokens are looked at: so many at once, then one in so long a time. Beyond that, only a token is looked
// at that was right before, from the same address: a program must not be locked out by strangers behind the same proxy.
// This too has a bound, because a guess at that very token looks the same.
const (
	wrongOfOne      = 20 // from one address
	wrongOfOneEvery = 5 * time.Second
	wrongOfAll      = 200 // from all addresses
	wrongOfAllEvery = 100 * time.Millisecond
	friends         = 100 // from addresses of which a right token came before
	friendsEvery    = 20 * time.Millisecond

	// guessPlaces bounds what is remembered: addresses share places by a hash that no stranger can foretell.
	guessPlaces = 1024
)

// TooManyError says that so many wrong tokens came that this one was not looked at.
type TooManyError struct{ Wait time.Duration }

// Seconds is how long to wait at least.
func (e TooManyError) Seconds() int { return max(1, int(math.Ceil(e.Wait.Seconds()))) }

func (e TooManyError) Error() string {
	return fmt.Sprintf("too many wrong tokens came from this address, or from all together, so this one was not looked "+
		"at: try again in %d s", e.Seconds())
}

// guesses bounds how many tokens strangers may try. Its memory is the same whoever asks.
type guesses struct {
	refused *prometheus.CounterVec
	seed    maphash.Seed

	mu           sync.Mutex
	places       [guessPlaces]guessPlace // by address; guarded by mu, as all below
	right, wrong [guessPlaces]tokenFrom  // those that came last, by address and token
	all, friends *rate.Limiter           // wrong tokens from everywhere; what is looked at beyond that
	told         warner
}

// guessPlace is what is remembered of the addresses that share it.
type guessPlace struct {
	wrong  *rate.Limiter
	friend netip.Addr // the last one from which a right token came
}

// tokenFrom is a token, and from where it came.
type tokenFrom struct {
	from netip.Addr
	hash [sha256.Size]byte
}

// Why a token was refused, in the metric.
const (
	whyUnknown = "unknown"
	whyTooMany = "too_many"
)

func newGuesses(o GuardOptions) (*guesses, error) {
	g := &guesses{
		told: warner{log: o.Logger}, seed: maphash.MakeSeed(),
		all:     rate.NewLimiter(rate.Every(wrongOfAllEvery), wrongOfAll),
		friends: rate.NewLimiter(rate.Every(friendsEvery), friends),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollbackd_refused_tokens_total",
			Help: "Tokens that were refused: unknown ones, and those that were not looked at after too many unknown ones.",
		}, []string{"why"}),
	}
	for i := range g.places {
		g.places[i].wrong = rate.NewLimiter(rate.Every(wrongOfOneEvery), wrongOfOne)
	}
	for _, why := range []string{whyUnknown, whyTooMany} {
		g.refused.WithLabelValues(why) // so that it is there before the first one
	}
	if o.Metrics == nil {
		return g, nil
	}
	if err := o.Metrics.Register(g.refused); err != nil {
		return nil, fmt.Errorf("count refused tokens: %w", err)
	}
	return g, nil
}

// check finds out which token a text is that came with r. After too many wrong ones it is not looked at, so that a
// guess tells nothing, and the error is a TooManyError.
func (g *guesses) check(r *http.Request, text string, find func(text string) (Token, bool)) (Token, error) {
	g.mu.Lock() // one after the other: else as many guesses as come at once would pass
	defer g.mu.Unlock()
	now, this := time.Now(), tokenFrom{networkOf(r.RemoteAddr), sha256.Sum256([]byte(text))}
	place, n := &g.places[g.place(tokenFrom{from: this.from})], g.place(this)
	again := g.wrong[n] == this // no new guess: a program with an old token must not lock others out
	if wait := max(waitFor(place.wrong, now), waitFor(g.all, now)); wait > 0 && !again {
		if place.friend != this.from || !g.friends.AllowN(now, 1) || g.right[n] != this {
			g.refuse(r, whyTooMany)
			return Token{}, TooManyError{wait}
		}
	}
	t, ok := find(text)
	if ok {
		place.friend, g.right[n] = this.from, this
		return t, nil
	}
	if !again {
		place.wrong.AllowN(now, 1)
		g.all.AllowN(now, 1)
		g.wrong[n] = this
	}
	g.refuse(r, whyUnknown)
	return Token{}, errBadToken
}

func (g *guesses) place(what tokenFrom) uint64 { return maphash.Comparable(g.seed, what) % guessPlaces }

// waitFor is how long it takes until a limiter lets one more through.
func waitFor(l *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - l.TokensAt(now)
	return time.Duration(max(0, missing) / float64(l.Limit()) * float64(time.Second))
}

func (g *guesses) refuse(r *http.Request, why string) {
	g.refused.WithLabelValues(why).Inc()
	g.told.warn("unknown tokens are refused", "last_from", r.RemoteAddr, "last_path", r.URL.Path)
}

// networkOf is who asks, as far as the kernel knows: of IPv6 the network, because one has as many of its addresses as
// he wants.
func networkOf(address string) netip.Addr {
	peer, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.IPv6Unspecified()
	}
	from := peer.Addr().Unmap().WithZone("")
	if from.Is4() {
		return from
	}
	return netip.PrefixFrom(from, 64).Masked().Addr()
}
