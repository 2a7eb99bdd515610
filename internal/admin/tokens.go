package admin

import (
	"bufio"
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
	"unicode"
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
func ReadTokens(r io.Reader) ([]Token, error) {
	var all []Token
	whole := &io.LimitedReader{R: r, N: maxTokensFile + 1}
	lines := bufio.NewScanner(whole)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		t, err := readToken(strings.Fields(line))
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
	switch {
	case lines.Err() != nil:
		return nil, lines.Err()
	case whole.N == 0: // its last line may be half of one, and half a token is easier to guess
		return nil, fmt.Errorf("it has over %d bytes", maxTokensFile)
	case len(all) == 0:
		return nil, errors.New("there is no token in it")
	}
	return all, nil
}

func readToken(words []string) (t Token, err error) {
	if len(words) != 3 {
		return t, errors.New("is not NAME read|full TOKEN")
	}
	t.Name = words[0]
	if len(t.Name) > maxName || strings.ContainsFunc(t.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return t, fmt.Errorf("has a name of more than %d bytes, or one that cannot be printed", maxName)
	}
	switch words[1] {
	case Look.String():
		t.Right = Look
	case Act.String():
		t.Right = Act
	default:
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
	copy(t.Hash[:], sum)
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
	file  []Token   // as last read without an error; guarded by mu
	stamp fileStamp // of the file that was read last; guarded by mu
	told  string    // what was warned of and still holds; guarded by mu
}

// fileStamp tells a file that has changed.
type fileStamp struct {
	at   time.Time
	size int64
}

func newTokens(o GuardOptions) (*tokens, error) {
	t := &tokens{one: o.Token, path: o.TokensFile, log: o.Logger}
	if t.path == "" {
		return t, nil
	}
	var err error
	if t.file, t.stamp, err = readTokensFile(t.path); err != nil {
		return nil, fmt.Errorf("ROLLBACKD_ADMIN_TOKENS_FILE: %w", err)
	}
	return t, nil
}

func readTokensFile(path string) ([]Token, fileStamp, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fileStamp{}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, fileStamp{}, err
	}
	stamp := fileStamp{info.ModTime(), info.Size()}
	all, err := ReadTokens(f)
	if err != nil {
		return nil, stamp, fmt.Errorf("the file %s: %w", path, err)
	}
	return all, stamp, nil
}

// all are the tokens as they are now. While the file cannot be read, those hold that it had before, and one warning
// says why.
func (t *tokens) all() []Token {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.file
	if t.path != "" {
		if info, err := os.Stat(t.path); err != nil || (fileStamp{info.ModTime(), info.Size()}) != t.stamp {
			all = t.reread()
		}
	}
	if t.one == nil {
		return all
	}
	if text := t.one(); text != "" {
		all = append([]Token{{SettingName, Act, sha256.Sum256([]byte(text))}}, all...)
	}
	return all
}

// reread holds mu.
func (t *tokens) reread() []Token {
	now, stamp, err := readTokensFile(t.path)
	problem := ""
	if err != nil {
		problem = err.Error()
	} else {
		t.file = now
	}
	if !stamp.at.IsZero() {
		t.stamp = stamp // what is wrong with it stays wrong until it changes
	}
	if problem != "" && problem != t.told {
		t.log.Warn("ROLLBACKD_ADMIN_TOKENS_FILE cannot be read again; the tokens that it had stay good", "err", err)
	}
	t.told = problem
	return t.file
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
