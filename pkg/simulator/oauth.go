package simulator

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// oauthServer exchanges assertions of service accounts for access tokens. A token contains its
// expiry time and a MAC. The key of the MAC is derived from the seed, so tokens stay valid after a
// restart of the simulator.
type oauthServer struct {
	sim    *Simulator
	parser *jwt.Parser
}

const (
	jwtBearer       = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	fcmScope        = "https://www.googleapis.com/auth/firebase.messaging"
	cloudScope      = "https://www.googleapis.com/auth/cloud-platform"
	maxAssertionAge = time.Hour // longest lifetime of an assertion
)

func newOAuth(s *Simulator) *oauthServer {
	return &oauthServer{sim: s, parser: jwt.NewParser(jwt.WithValidMethods([]string{"RS256"}), jwt.WithoutClaimsValidation())}
}

func (o *oauthServer) token(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	if err != nil {
		return
	}
	form, err := url.ParseQuery(string(raw))
	a := o.exchangeAssertion(form)
	if err != nil {
		a = oauthError(http.StatusBadRequest, "invalid_request", "The body is not a form.")
	}
	c := &providerCall{provider: OAuth, fault: func(rule *Rule, now time.Time) providerAnswer {
		a := oauthError(rule.Status, stringOr(rule.Code, oauthDefault(rule.Status)), "Scripted by a rule.")
		setRetryAfter(a.header, rule.retryAfter(now))
		return a
	}}
	settleCall(o.sim, w, r, c, a)
}

type assertion struct {
	jwt.RegisteredClaims
	Scope string `json:"scope"`
}

func (o *oauthServer) exchangeAssertion(form url.Values) providerAnswer {
	if form.Get("grant_type") != jwtBearer {
		return oauthError(http.StatusBadRequest, "unsupported_grant_type", "Invalid grant_type: "+form.Get("grant_type"))
	}
	var c assertion
	t, err := o.parser.ParseWithClaims(form.Get("assertion"), &c, func(*jwt.Token) (any, error) { return &o.sim.keys.fcm.PublicKey, nil })
	if err != nil {
		return oauthError(http.StatusBadRequest, "invalid_grant", "Invalid JWT Signature.")
	}
	now := o.sim.now()
	kid, hasKid := t.Header["kid"]
	switch {
	case c.Issuer != o.sim.keys.fcmEmail || hasKid && kid != o.sim.keys.fcmKeyID:
		return oauthError(http.StatusBadRequest, "invalid_grant", "Invalid grant: account not found")
	case len(c.Audience) != 1 || c.Audience[0] != o.sim.URLs().FCMToken:
		return oauthError(http.StatusBadRequest, "invalid_grant", "Invalid JWT: Failed audience check.")
	case c.IssuedAt == nil || c.ExpiresAt == nil || c.IssuedAt.After(now.Add(clockSkew)) || !c.ExpiresAt.After(now.Add(-clockSkew)) ||
		c.ExpiresAt.Sub(c.IssuedAt.Time) > maxAssertionAge:
		return oauthError(http.StatusBadRequest, "invalid_grant", "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and exp values in the JWT claim.")
	}
	scopes := strings.Fields(c.Scope)
	if len(scopes) == 0 {
		return oauthError(http.StatusBadRequest, "invalid_scope", "Empty or missing scope not allowed.")
	}
	for _, s := range scopes {
		if s == fcmScope || s == cloudScope {
			return o.grant(now)
		}
	}
	return oauthError(http.StatusBadRequest, "invalid_scope", "Invalid OAuth scope or ID token audience provided.")
}

func (o *oauthServer) grant(now time.Time) providerAnswer {
	ttl := o.sim.cfg.FCM.TokenTTL
	body := fmt.Appendf(nil, `{"access_token":%q,"expires_in":%d,"token_type":"Bearer"}`,
		o.accessToken(now.Add(ttl)), max(1, int(ttl.Seconds())-1))
	return providerAnswer{status: http.StatusOK, header: jsonHeader(), body: body}
}

// accessToken returns an access token that is valid until the given time.
func (o *oauthServer) accessToken(expiry time.Time) string {
	exp := strconv.FormatInt(expiry.UnixMilli(), 10)
	return "ya29." + exp + "." + o.mac(exp)
}

func (o *oauthServer) mac(s string) string {
	m := hmac.New(sha256.New, o.sim.keys.access[:])
	m.Write([]byte(s))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// valid reports whether an Authorization header contains a valid access token.
func (o *oauthServer) valid(header string, now time.Time) bool {
	scheme, token, _ := strings.Cut(header, " ")
	rest, ok := strings.CutPrefix(token, "ya29.")
	exp, mac, dotted := strings.Cut(rest, ".")
	if !strings.EqualFold(scheme, "bearer") || !ok || !dotted || !hmac.Equal([]byte(mac), []byte(o.mac(exp))) {
		return false
	}
	ms, err := strconv.ParseInt(exp, 10, 64)
	return err == nil && now.UnixMilli() < ms
}

func oauthError(status int, code, description string) providerAnswer {
	return providerAnswer{status: status, header: jsonHeader(), body: mustJSON(map[string]string{"error": code, "error_description": description})}
}

func oauthDefault(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "invalid_client"
	case status >= 500:
		return "internal_failure"
	}
	return "invalid_grant"
}
