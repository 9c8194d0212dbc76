package web

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"sync"
	"time"
)

const (
	sessionLasts = time.Hour // at most; a token that ends before ends it
	maxSessions  = 1000      // over it the oldest goes
	maxOfUser    = 50        // the same of one user, so that nobody signs the others out
)

// session is somebody who has signed in. The token stays here.
type session struct {
	user  string
	token string
	ends  time.Time
}

// sessions are kept in memory, under the hash of their name: a restart signs
// everybody out.
type sessions struct {
	key []byte
	now func() time.Time

	mu sync.Mutex
	of map[[sha256.Size]byte]session
}

func newSessions(key []byte, now func() time.Time) *sessions {
	return &sessions{key: key, now: now, of: map[[sha256.Size]byte]session{}}
}

// name is one that nobody guesses: 130 bits.
func (*sessions) name() string { return rand.Text() }

// begin returns the name of a fresh session of a user.
func (s *sessions) begin(user, token string) string {
	name := s.name()
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var all, own oldest
	for k, one := range s.of {
		if !now.Before(one.ends) {
			delete(s.of, k)
			continue
		}
		all.add(k, one.ends)
		if one.user == user {
			own.add(k, one.ends)
		}
	}
	switch {
	case own.n >= maxOfUser:
		delete(s.of, own.at)
	case all.n >= maxSessions:
		delete(s.of, all.at)
	}
	s.of[sha256.Sum256([]byte(name))] = session{user, token, now.Add(sessionLasts)}
	return name
}

// oldest is which of n sessions ends first.
type oldest struct {
	n    int
	at   [sha256.Size]byte
	ends time.Time
}

func (o *oldest) add(at [sha256.Size]byte, ends time.Time) {
	if o.n++; o.n == 1 || ends.Before(o.ends) {
		o.at, o.ends = at, ends
	}
}

func (s *sessions) find(name string) (session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.of[sha256.Sum256([]byte(name))]
	return one, ok && s.now().Before(one.ends)
}

func (s *sessions) end(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, sha256.Sum256([]byte(name)))
}

// csrf is what every form under a cookie carries: only who can read our pages
// knows it.
func (s *sessions) csrf(cookie string) string {
	m := hmac.New(sha256.New, s.key)
	m.Write([]byte("form of " + cookie))
	return hex.EncodeToString(m.Sum(nil))
}

func (s *sessions) fits(cookie, csrf string) bool {
	return cookie != "" && hmac.Equal([]byte(s.csrf(cookie)), []byte(csrf))
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
