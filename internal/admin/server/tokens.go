package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Token is one that is known. The text of a token is kept nowhere.
type Token struct {
	Name  string
	Right Right
	Hash  [sha256.Size]byte
}

// hashed begins a token that stands in the file as the hexadecimal SHA-256 of its text.
const hashed = "sha256:"

// maxTokens and maxTokensFile bound what is read.
const (
	maxTokens     = 1000
	maxTokensFile = 1 << 20
)

// ReadTokens reads named tokens, one on each line: NAME read|full TOKEN, where the token is its text, or sha256: and
// the hexadecimal SHA-256 of its text. Empty lines and those that begin with # say nothing. Errors name the line and
// repeat nothing of it.
func ReadTokens(r io.Reader) (all []Token, err error) {
	text, err := io.ReadAll(io.LimitReader(r, maxTokensFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxTokensFile { // its last line may be half of one, and half a token is easier to guess
		return nil, fmt.Errorf("it has over %d bytes", maxTokensFile)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		t, err := readToken(words)
		if err != nil {
			return nil, fmt.Errorf("line %d %w", n, err)
		}
		for _, other := range all {
			if other.Name == t.Name {
				return nil, fmt.Errorf("line %d has the name of another line", n)
			}
			if other.Hash == t.Hash {
				return nil, fmt.Errorf("line %d has the token of another line", n)
			}
		}
		if all = append(all, t); len(all) > maxTokens {
			return nil, fmt.Errorf("there are more than %d tokens", maxTokens)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("there is no token in it")
	}
	return all, nil
}

var rights = map[string]Right{Look.String(): Look, Act.String(): Act}

func readToken(words []string) (t Token, err error) {
	if len(words) != 3 {
		return t, errors.New("is not NAME read|full TOKEN")
	}
	t.Name, t.Right = words[0], rights[words[1]]
	if !nameable(t.Name) {
		return t, fmt.Errorf("has a name of more than %d bytes, or one that cannot be printed", maxName)
	}
	if t.Right == Nobody {
		return t, errors.New("must say read or full behind the name")
	}
	digest, isHash := strings.CutPrefix(words[2], hashed)
	if !isHash {
		t.Hash = sha256.Sum256([]byte(words[2]))
		return t, nil
	}
	sum, err := hex.DecodeString(digest)
	if err != nil || len(sum) != sha256.Size {
		return t, errors.New("has something else than 64 hexadecimal digits behind its sha256")
	}
	t.Hash = [sha256.Size]byte(sum)
	return t, nil
}

// SettingName is the name of the one token that has no name of its own.
const SettingName = "admin"

// tokens are those that are known, by the settings and by the file.
type tokens struct {
	one  func() string
	path string
	log  *slog.Logger

	mu    sync.Mutex
	file  []Token   // as last read without an error; guarded by mu, as all below
	stamp fileStamp // of the file that was read last
	wrong error     // with the file as it is; it has been told
}

// fileStamp tells a file that has changed.
type fileStamp struct {
	at   time.Time
	size int64
}

func newTokens(o GuardOptions) (*tokens, error) {
	t := &tokens{one: o.Token, path: o.TokensFile, log: o.Logger}
	if err := t.read(); err != nil {
		return nil, fmt.Errorf("ROLLBACKD_ADMIN_TOKENS_FILE: %w", err)
	}
	return t, nil
}

// read reads the file, if there is one and it has changed. The caller holds mu, or is alone.
func (t *tokens) read() error {
	if t.path == "" {
		return nil
	}
	info, err := os.Stat(t.path)
	if err != nil {
		t.stamp = fileStamp{}
		return err
	}
	stamp := fileStamp{info.ModTime(), info.Size()}
	if stamp == t.stamp {
		return t.wrong
	}
	f, err := os.Open(t.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	t.stamp = stamp
	all, err := ReadTokens(f)
	if err != nil {
		return fmt.Errorf("the file %s: %w", t.path, err)
	}
	t.file = all
	return nil
}

// all are the tokens as they are now. While the file cannot be read, those hold that it had before, and one warning
// says why.
func (t *tokens) all() (all []Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.read()
	if err != nil && (t.wrong == nil || err.Error() != t.wrong.Error()) {
		t.log.Warn("ROLLBACKD_ADMIN_TOKENS_FILE cannot be read again; the tokens that it had stay good", "err", err)
	}
	t.wrong = err
	if t.one != nil && t.one() != "" {
		all = append(all, Token{SettingName, Act, sha256.Sum256([]byte(t.one()))})
	}
	return append(all, t.file...)
}

func (t *tokens) none() bool { return t.path == "" && (t.one == nil || t.one() == "") }

// find compares with every token, whichever it is, so that the time tells nothing.
func (t *tokens) find(text string) (found Token, ok bool) {
	hash := sha256.Sum256([]byte(text))
	for _, known := range t.all() {
		if subtle.ConstantTimeCompare(hash[:], known.Hash[:]) == 1 {
			found, ok = known, true
		}
	}
	return found, ok && text != ""
}

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
