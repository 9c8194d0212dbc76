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
	sessionLasts    = time.Hour // at most; a token that ends before ends it
	maxSessionToken = 3000      // bytes; sealed it fills the 4,096 that browsers keep of a cookie
)

// sessions seals sessions into cookies and keeps none, so every process with the
// same key knows the sessions of all of them, also after a restart. A session is its
// end and the token of the visitor: the key alone, without a good token, opens
// nothing. Whoever copied a cookie can use it until its end, as with a token.
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

// newFormName returns the value of a cookie that binds the form to sign in to one
// browser: 130 random bits.
func (*sessions) newFormName() string { return rand.Text() }

// begin returns the cookie of a new session. The token has at most maxSessionToken
// bytes.
func (s *sessions) begin(token string) string {
	session := binary.BigEndian.AppendUint64(nil, uint64(s.now().Add(sessionLasts).UnixMilli()))
	return base64.RawURLEncoding.EncodeToString(s.seal.Seal(nil, nil, append(session, token...), nil))
}

// token returns the token of a session. It returns false when the cookie is not one
// that begin made with this key, and when the session has ended.
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

// csrf is what every form under a cookie carries: only who can read our pages
// knows it.
func (s *sessions) csrf(cookie string) string { return hex.EncodeToString(s.mac("form of " + cookie)) }

func (s *sessions) fits(cookie, csrf string) bool {
	return cookie != "" && hmac.Equal([]byte(s.csrf(cookie)), []byte(csrf))
}

func (s *sessions) mac(text string) []byte {
	m := hmac.New(sha256.New, s.key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// Names of cookies. With TLS the browser holds them to this host.
const (
	cookieSession = "notifyd_session"
	cookieForm    = "notifyd_form" // of the form to sign in
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

// setCookie sets one for seconds; below 0 removes it.
func (p *Page) setCookie(w http.ResponseWriter, r *http.Request, name, value string, seconds int) {
	c := &http.Cookie{Name: name, Value: value, Path: Prefix, MaxAge: seconds, HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if p.secure(r) {
		c.Name, c.Path, c.Secure = hostOnly+name, "/", true
	}
	http.SetCookie(w, c)
}
