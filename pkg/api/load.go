package api

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// HeaderLoad marks a request of a load run. Its value is the token of the run's load grant, or
// LoadLocal.
const HeaderLoad = "Notifyd-Load"

// LoadLocal is the value of HeaderLoad for a run without a grant. Only an embedded notifyd that
// calls no real providers accepts it, and only over loopback.
const LoadLocal = "local"

// States of a grant.
const (
	GrantPending = "pending" // a second operator must approve it
	GrantActive  = "active"
	GrantExpired = "expired"
	GrantRevoked = "revoked"
)

// Kinds of providers that the workers of a cluster call. A grant contains the most harmful kind
// that its load may reach.
const (
	ProvidersStub      = "stub"      // no calls: the process itself accepts every message
	ProvidersSimulated = "simulated" // simulated providers (setting providers.simulated)
	ProvidersReal      = "real"
	ProvidersNone      = "none" // no providers: the process works on no lane
)

// ProviderModes lists the kinds that a grant may contain, the least harmful first.
var ProviderModes = []string{ProvidersStub, ProvidersSimulated, ProvidersReal}

// GrantTargets lists what a grant may allow: the channels and triggers.
var GrantTargets = []string{"push", "sms", "email", "trigger"}

// MostInLoadRequest returns how many messages one request of a load run may have. The parameter
// rate is the number of messages a second that the grant allows; one request may have as many as
// the grant allows in ten seconds. A request is accepted as a whole or not at all, so without this
// limit one request could exceed any rate.
func MostInLoadRequest(rate float64) float64 { return max(math.Floor(10*rate), 1) }

// maxLoadToken is the longest token of a grant, in bytes. The longest grant, with 20 hosts of 255
// bytes, fits: base64 makes four bytes of every three.
const maxLoadToken = 10 << 10

// LoadGrantRequest asks for a grant.
type LoadGrantRequest struct {
	Seconds   int64    `json:"seconds"`   // how long the grant is valid, 1 to 86,400
	Rate      float64  `json:"rate"`      // at most this many messages a second, for all generators together
	Targets   []string `json:"targets"`   // values of GrantTargets
	Providers string   `json:"providers"` // a value of ProviderModes
	Hosts     []string `json:"hosts"`     // HOST or HOST:PORT to which the load may be sent
	Reason    string   `json:"reason,omitempty"`
}

// LoadGrant allows a load run to send load to this cluster. An operator of the cluster makes it.
type LoadGrant struct {
	ID        string    `json:"id"`
	Cluster   string    `json:"cluster"` // the id of the installation
	Hosts     []string  `json:"hosts"`
	Rate      float64   `json:"rate"`
	Targets   []string  `json:"targets"`
	Providers string    `json:"providers"`
	ExpiresAt time.Time `json:"expires_at"`

	State      string    `json:"state,omitempty"`
	CreatedAt  time.Time `json:"created_at,omitzero"`
	By         string    `json:"by,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	ApprovedBy string    `json:"approved_by,omitempty"` // set only for real providers
	RevokedBy  string    `json:"revoked_by,omitempty"`
	// Token is the value that a generator sends in HeaderLoad. Only the answer to the request that
	// made the grant contains it.
	Token string `json:"token,omitempty"`
}

// LoadGrants lists the grants, newest first. Grants that expired more than a week ago may be
// missing.
type LoadGrants = List[LoadGrant]

// LoadGrantChange approves or revokes a grant.
type LoadGrantChange struct {
	To string `json:"to"` // approved or revoked
}

// Covers reports whether the grant allows this host, given as HOST or HOST:PORT. If the grant
// contains a name without a port, it allows all ports of that name. A given host without a port
// uses the default port of its scheme, so it is also allowed if the grant contains the same name
// with port 80 or 443.
func (g *LoadGrant) Covers(host string) bool {
	host = strings.ToLower(host)
	name, _, err := net.SplitHostPort(host)
	bare := err != nil
	if bare {
		name = strings.Trim(host, "[]")
	}
	return slices.ContainsFunc(g.Hosts, func(h string) bool {
		h = strings.ToLower(h)
		if h == host || strings.Trim(h, "[]") == name {
			return true
		}
		granted, port, err := net.SplitHostPort(h)
		return bare && err == nil && granted == name && (port == "443" || port == "80")
	})
}

// LoadHost returns HOST:PORT of an http or https URL, the form used in grants. It returns
// notify.KindInvalid if the URL has another form.
func LoadHost(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", notify.Invalid("bad_url", "server", "must be a URL such as https://notifyd.example:7420, without a user, query or fragment")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port), nil
}

// loadTokenKind is the first part of a grant's token. The second part is the grant as JSON and the
// third part is the cluster's signature, both in base64url. Dots separate the parts.
const loadTokenKind = "nlg1"

// SignLoadGrant returns the token of g. It signs only the fields that never change.
func SignLoadGrant(g LoadGrant, key ed25519.PrivateKey) string {
	fixed := LoadGrant{ID: g.ID, Cluster: g.Cluster, Hosts: g.Hosts, Rate: g.Rate, Targets: g.Targets, Providers: g.Providers, ExpiresAt: g.ExpiresAt}
	b, _ := json.Marshal(fixed) // a LoadGrant can always be encoded
	text := loadTokenKind + "." + base64.RawURLEncoding.EncodeToString(b)
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(text)))
}

// ReadLoadToken returns the grant in a token. If key is nil, it does not check the signature: a
// generator has no key, and asks the cluster whether the grant is active.
func ReadLoadToken(token string, key ed25519.PublicKey) (g LoadGrant, err error) {
	bad := notify.Invalid("load_grant_malformed", HeaderLoad, "is not the token of a load grant of this cluster")
	text, signature, ok := cutLast(token, ".")
	body, kind := strings.CutPrefix(text, loadTokenKind+".")
	if !ok || !kind || len(token) > maxLoadToken {
		return g, bad
	}
	sum, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || key != nil && !ed25519.Verify(key, []byte(text), sum) {
		return g, bad
	}
	b, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil || json.Unmarshal(b, &g) != nil {
		return LoadGrant{}, bad
	}
	return g, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// Grant makes a load grant. It needs a token with the scope "operate".
func (cl *Client) Grant(ctx context.Context, in LoadGrantRequest) (LoadGrant, error) {
	return sendJSON[LoadGrant](ctx, cl, http.MethodPost, "/v1/ops/load-grants", in, false)
}

// Grants returns the grants, newest first. Grants that expired more than a week ago may be missing.
func (cl *Client) Grants(ctx context.Context) (LoadGrants, error) {
	return getJSON[LoadGrants](ctx, cl, "/v1/ops/load-grants", nil)
}

// ChangeGrant approves or revokes a grant. The parameter state is "approved", which makes the grant
// active, or "revoked".
func (cl *Client) ChangeGrant(ctx context.Context, id, state string) (LoadGrant, error) {
	return sendJSON[LoadGrant](ctx, cl, http.MethodPost, "/v1/ops/load-grants/"+url.PathEscape(id), LoadGrantChange{state}, true)
}

// OwnGrant returns the grant of the token in cl.Load. If the grant is not active, it returns
// notify.KindForbidden with an error code that begins with "load_".
func (cl *Client) OwnGrant(ctx context.Context) (LoadGrant, error) {
	return getJSON[LoadGrant](ctx, cl, "/v1/load-grant", nil)
}
