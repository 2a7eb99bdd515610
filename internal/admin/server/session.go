package server

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A session is a cookie with a name, an end and the token itself, sealed with a key that is made of the token's hash.
// So no server keeps anything and every daemon with the same tokens knows it; it ends when the token is changed or
// taken away. Whoever steals the cookie does not have the token, and whoever reads the hashes in the file cannot make a
// cookie.

// cookieName is that of the session's cookie.
const cookieName = "rollbackd_session"

// sessionTime is how long a sign-in lasts: a working day, and nobody is signed in for ever.
const sessionTime = 12 * time.Hour

// SignIn sets the cookie if the text is a token. Its error says why it is not, and may be a TooManyError, of which the
// header of the answer then says how long to wait.
func (g *Guard) SignIn(w http.ResponseWriter, r *http.Request, text string) (Person, error) {
	text = strings.TrimSpace(text)
	t, err := g.guesses.check(r, text, g.tokens.find)
	if err != nil {
		retryLater(w, err)
		return Person{}, err
	}
	end := time.Now().Add(sessionTime)
	g.setCookie(w, r, sealSession(t, text, end), end)
	return Person{Name: t.Name, Right: t.Right, Session: true}, nil
}

// SignOut takes the cookie away.
func (g *Guard) SignOut(w http.ResponseWriter, r *http.Request) {
	g.setCookie(w, r, "", time.Unix(1, 0))
}

// setCookie says Secure when the browser came by TLS: to us, or, as it says itself in Origin, to a proxy before us.
func (g *Guard) setCookie(w http.ResponseWriter, r *http.Request, value string, end time.Time) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: value, Path: g.o.BasePath + "/", Expires: end, HttpOnly: true,
		SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://"),
	})
}

// session is who the cookie says, if it is one of ours and has not ended.
func (g *Guard) session(r *http.Request) (Person, bool) {
	cookies := r.CookiesNamed(cookieName)
	if len(cookies) == 0 {
		return Person{}, false
	}
	known := g.tokens.all()
	for _, c := range cookies {
		for _, t := range known {
			if opensSession(t, c.Value, time.Now()) {
				return Person{Name: t.Name, Right: t.Right, Session: true}, true
			}
		}
	}
	return Person{}, false
}

func sealSession(t Token, text string, end time.Time) string {
	said := sessionHead(t, end)
	return said + "." + base64.RawURLEncoding.EncodeToString(sealOf(t).Seal(nil, nil, []byte(text), []byte(said)))
}

// opensSession reports whether a cookie is a session of this token that has not ended.
func opensSession(t Token, cookie string, now time.Time) bool {
	parts := strings.Split(cookie, ".")
	if len(parts) != 3 {
		return false
	}
	seconds, err := strconv.ParseInt(parts[1], 10, 64)
	end := time.Unix(seconds, 0)
	sealed, err2 := base64.RawURLEncoding.DecodeString(parts[2])
	said := sessionHead(t, end)
	if err != nil || err2 != nil || !now.Before(end) || said != parts[0]+"."+parts[1] {
		return false
	}
	text, err := sealOf(t).Open(nil, nil, sealed, []byte(said))
	return err == nil && sha256.Sum256(text) == t.Hash
}

func sessionHead(t Token, end time.Time) string {
	return base64.RawURLEncoding.EncodeToString([]byte(t.Name)) + "." + strconv.FormatInt(end.Unix(), 10)
}

func sealOf(t Token) cipher.AEAD {
	key, err := hkdf.Key(sha256.New, t.Hash[:], nil, "rollbackd session", 32)
	block, err2 := aes.NewCipher(key)
	seal, err3 := cipher.NewGCMWithRandomNonce(block)
	if err := errors.Join(err, err2, err3); err != nil {
		panic(err) // cannot be: the lengths are right
	}
	return seal
}
