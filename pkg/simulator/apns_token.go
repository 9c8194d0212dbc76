package simulator

import (
	"crypto/ecdsa"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// tokenChecker verifies provider tokens. It remembers good tokens, because verifying a signature
// takes 60 us.
type tokenChecker struct {
	key            *ecdsa.PublicKey
	keyID          string
	teamID         string
	ttl            time.Duration
	floor          time.Duration
	mu             sync.Mutex
	verifiedTokens map[string]time.Time // time at which each token was issued; mu guards it
	parserCfg      *jwt.Parser
}

// tokensKept is the most tokens that a tokenChecker remembers. When it is full, it forgets all
// tokens.
const tokensKept = 256

// clockSkew is how far in the future the issue time of a token may be.
const clockSkew = time.Minute

func newTokenChecker(s *Simulator) *tokenChecker {
	return &tokenChecker{
		key: &s.keys.apns.PublicKey, keyID: s.keys.creds.APNs.KeyID, teamID: s.keys.creds.APNs.TeamID,
		ttl: s.cfg.APNs.TokenTTL, floor: s.cfg.APNs.TokenFloor, verifiedTokens: map[string]time.Time{},
		parserCfg: jwt.NewParser(jwt.WithValidMethods([]string{"ES256"}), jwt.WithoutClaimsValidation()),
	}
}

// apnsConn holds what APNs remembers about a connection: its token, and when the token changed.
// APNs limits how often a connection may change its token.
type apnsConn struct {
	mu      sync.Mutex
	token   string
	changed time.Time
	blocked time.Time // every request before this time is refused
}

// checkToken returns the reason to refuse the provider token of a request, or "" if the token is
// good.
func (t *tokenChecker) checkToken(r *http.Request, now time.Time) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return "MissingProviderToken"
	}
	issued, ok := t.verify(token)
	switch {
	case !ok || issued.After(now.Add(clockSkew)):
		return "InvalidProviderToken"
	case now.Sub(issued) > t.ttl:
		return "ExpiredProviderToken"
	}
	if c := connOf(r.Context()); c != nil && t.floor > 0 && !c.apns.useToken(token, now, t.floor) {
		return "TooManyProviderTokenUpdates"
	}
	return ""
}

// useToken records the token of a request. It returns false if the connection changes its token
// again before the time floor has passed since the last change. From then on it returns false for
// every request until that time has passed.
func (c *apnsConn) useToken(token string, now time.Time, floor time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.blocked) {
		return false
	}
	if token == c.token {
		return true
	}
	if c.token != "" && now.Sub(c.changed) < floor {
		c.blocked = c.changed.Add(floor)
		return false
	}
	c.token, c.changed = token, now
	return true
}

func (t *tokenChecker) verify(token string) (issued time.Time, ok bool) {
	t.mu.Lock()
	issued, ok = t.verifiedTokens[token]
	t.mu.Unlock()
	if ok {
		return issued, true
	}
	var claims jwt.RegisteredClaims
	parsed, err := t.parserCfg.ParseWithClaims(token, &claims, func(*jwt.Token) (any, error) { return t.key, nil })
	if err != nil || parsed.Header["kid"] != t.keyID || claims.Issuer != t.teamID || claims.IssuedAt == nil {
		return time.Time{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.verifiedTokens) >= tokensKept {
		clear(t.verifiedTokens)
	}
	t.verifiedTokens[token] = claims.IssuedAt.Time
	return claims.IssuedAt.Time, true
}
