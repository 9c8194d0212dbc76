package api

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// HeaderLoad marks a request of a load run. Its value is the token of the grant that the
// run has, or LoadLocal.
const HeaderLoad = "Notifyd-Load"

// LoadLocal marks a load run without a grant. Only an embedded notifyd takes it, and only
// over loopback.
const LoadLocal = "local"

// States of a grant.
const (
	GrantPending = "pending" // waits for a second operator
	GrantActive  = "active"
	GrantExpired = "expired"
	GrantRevoked = "revoked"
)

// What calls the providers of a cluster, from the least harmful on. A grant names the
// worst that its load may reach.
const (
	ProvidersStub      = "stub"      // everything is accepted inside the process
	ProvidersSimulated = "simulated" // simulators (providers.simulated)
	ProvidersReal      = "real"
)

// ProviderModes are in their order.
var ProviderModes = []string{ProvidersStub, ProvidersSimulated, ProvidersReal}

// GrantTargets is what a grant may allow: channels, and triggers.
var GrantTargets = []string{"push", "sms", "email", "trigger"}

// LoadGrantRequest asks for a grant.
type LoadGrantRequest struct {
	Seconds   int64    `json:"seconds"`   // how long it holds, 1 to 86,400
	Rate      float64  `json:"rate"`      // messages a second at most, over all generators
	Targets   []string `json:"targets"`   // of GrantTargets
	Providers string   `json:"providers"` // of ProviderModes
	Hosts     []string `json:"hosts"`     // HOST or HOST:PORT that the load may go to
	Reason    string   `json:"reason,omitempty"`
}

// LoadGrant is the consent of a cluster to be put under load.
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
	ApprovedBy string    `json:"approved_by,omitempty"` // of one that names real providers
	RevokedBy  string    `json:"revoked_by,omitempty"`
	// Token is what generators show. Only the answer to the request that made the grant
	// has it.
	Token string `json:"token,omitempty"`
}

// LoadGrants are the grants of the last week, the newest first.
type LoadGrants = List[LoadGrant]

// LoadGrantChange approves or revokes a grant.
type LoadGrantChange struct {
	To string `json:"to"` // approved or revoked
}

// Covers reports whether the grant names a host, given as HOST or HOST:PORT. A name
// without a port in the grant stands for all ports.
func (g *LoadGrant) Covers(host string) bool {
	host = strings.ToLower(host)
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	return slices.ContainsFunc(g.Hosts, func(h string) bool {
		h = strings.ToLower(h)
		return h == host || strings.Trim(h, "[]") == name
	})
}

// LoadHost returns HOST:PORT of an http or https URL, as a grant names it.
func LoadHost(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", notify.Invalid("bad_url", "server", "is a URL such as https://notifyd.example:7420")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port), nil
}

// A token of a grant is this, the grant as JSON, and a signature by the cluster, with
// dots between; both in base64url.
const loadTokenKind = "nlg1"

// SignLoadGrant returns the token of g, of which it signs what does not change.
func SignLoadGrant(g LoadGrant, key ed25519.PrivateKey) string {
	fixed := LoadGrant{ID: g.ID, Cluster: g.Cluster, Hosts: g.Hosts, Rate: g.Rate, Targets: g.Targets, Providers: g.Providers, ExpiresAt: g.ExpiresAt}
	b, _ := json.Marshal(fixed) // it has nothing that cannot be JSON
	text := loadTokenKind + "." + base64.RawURLEncoding.EncodeToString(b)
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(text)))
}

// ReadLoadToken returns the grant that a token is of. Where key is nil, as in a generator,
// the signature is not checked: only the cluster can say whether the grant holds.
func ReadLoadToken(token string, key ed25519.PublicKey) (g LoadGrant, err error) {
	bad := notify.Invalid("load_grant_malformed", HeaderLoad, "is no token of a load grant of this cluster")
	text, signature, ok := cutLast(token, ".")
	body, kind := strings.CutPrefix(text, loadTokenKind+".")
	if !ok || !kind || len(token) > 4<<10 {
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

// Grant makes a grant for load, which an operator's token may.
func (cl *Client) Grant(ctx context.Context, in LoadGrantRequest) (LoadGrant, error) {
	return sendJSON[LoadGrant](ctx, cl, http.MethodPost, "/v1/ops/load-grants", in, false)
}

// Grants returns the grants of the last week, the newest first.
func (cl *Client) Grants(ctx context.Context) (LoadGrants, error) {
	return getJSON[LoadGrants](ctx, cl, "/v1/ops/load-grants", nil)
}

// ChangeGrant sets a grant to approved or revoked.
func (cl *Client) ChangeGrant(ctx context.Context, id, to string) (LoadGrant, error) {
	return sendJSON[LoadGrant](ctx, cl, http.MethodPost, "/v1/ops/load-grants/"+url.PathEscape(id), LoadGrantChange{to}, true)
}

// OwnGrant asks whether the grant of cl.Load holds now. Where it does not, the error is
// of notify.KindForbidden with a code that begins with load_.
func (cl *Client) OwnGrant(ctx context.Context) (LoadGrant, error) {
	return getJSON[LoadGrant](ctx, cl, "/v1/load-grant", nil)
}
