package web

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/http"
	"time"
)

const (
	sessionLasts    = time.Hour // at most; if the token ends earlier, the session ends with it
	maxSessionToken = 3000      // bytes; a sealed token of this size fills the 4,096 bytes that browsers allow for a cookie
)

// sessions seals sessions into cookies and stores none. So every process with the same key accepts
// the sessions of all processes, also after a restart. A session contains its end time and the
// visitor's token. Without a valid token, the key alone gives no access. A copied cookie works
// until the session ends, like a copied token.
type sessions struct {
	key  []byte
	seal cipher.AEAD
	now  func() time.Time
}

func newSessions(key []byte, now func() time.Time) (*sessions, error) {
	if len(key) < 32 {
		return nil, errors.New("web: Key must have at least 32 bytes")
	}
	s := &sessions{key: key, now: now}
	block, err := aes.NewCipher(s.mac("key of session cookies"))
	if err != nil {
		return nil, err
	}
	s.seal, err = cipher.NewGCMWithRandomNonce(block)
	return s, err
}

// newFormName returns the value of the cookie that connects the sign-in form with one browser. It
// has 130 random bits.
func (*sessions) newFormName() string { return rand.Text() }

// newCookie returns the cookie of a new session. The token must have at most maxSessionToken
// bytes.
func (s *sessions) newCookie(token string) string {
	session := binary.BigEndian.AppendUint64(nil, uint64(s.now().Add(sessionLasts).UnixMilli()))
	return base64.RawURLEncoding.EncodeToString(s.seal.Seal(nil, nil, append(session, token...), nil))
}

// token returns the token in a session cookie. It returns false if the cookie was not made with
// this key, or if the session has ended.
func (s *sessions) token(cookie string) (string, bool) {
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(cookie)
	if err != nil {
		return "", false
	}
	session, err := s.seal.Open(nil, nil, sealed, nil)
	if err != nil || len(session) < 8 {
		return "", false
	}
	ends := time.UnixMilli(int64(binary.BigEndian.Uint64(session)))
	return string(session[8:]), s.now().Before(ends)
}

// csrf returns the token that every form of a session contains. Other sites cannot read it.
func (s *sessions) csrf(cookie string) string { return hex.EncodeToString(s.mac("form of " + cookie)) }

func (s *sessions) csrfMatches(cookie, csrf string) bool {
	return cookie != "" && hmac.Equal([]byte(s.csrf(cookie)), []byte(csrf))
}

func (s *sessions) mac(text string) []byte {
	m := hmac.New(sha256.New, s.key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// Names of cookies. With TLS, the prefix hostOnly makes browsers restrict the cookies to this host.
const (
	cookieSession = "notifyd_session"
	cookieForm    = "notifyd_form" // cookie of the sign-in form
	hostOnly      = "__Host-"
)

func (p *Page) secure(r *http.Request) bool { return p.cfg.Secure || r.TLS != nil }

func (p *Page) cookie(r *http.Request, name string) string {
	if p.secure(r) {
		name = hostOnly + name
	}
	if c, err := r.Cookie(name); err == nil {
		return c.Value
	}
	return ""
}

// setCookie sets a cookie for the given number of seconds. A negative number removes the cookie.
func (p *Page) setCookie(w http.ResponseWriter, r *http.Request, name, value string, seconds int) {
	c := &http.Cookie{Name: name, Value: value, Path: Prefix, MaxAge: seconds, HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if p.secure(r) {
		c.Name, c.Path, c.Secure = hostOnly+name, "/", true
	}
	http.SetCookie(w, c)
}
