package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
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
