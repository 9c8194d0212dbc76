package cluster

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	grantsMeta   = "load_grants"
	grantKeyMeta = "load_grant_key" // 32 random bytes: the seed of the key that signs tokens

	maxGrantFor = 24 * time.Hour
	keepGrant   = 7 * 24 * time.Hour // how long a grant is kept after it has expired
	maxGrants   = 200                // largest number of active and pending grants at a time
	listGrants  = 500                // largest number of stored grants, with ended ones; every process decodes all
)

// Grants contains the load grants of the cluster. Grants are stored, so every process learns when
// a grant is revoked. A grant's token is signed, so a load generator cannot forge it. A grant for
// real providers becomes active only when a second operator approves it. All methods are safe for
// concurrent use.
type Grants struct {
	followed[api.LoadGrant]
	cluster string
	key     ed25519.PrivateKey
	// providers returns the most harmful kind of provider that any process of the cluster calls:
	// one of api.ProviderModes.
	providers func(context.Context) string
	log       *slog.Logger

	known atomic.Pointer[map[string]api.LoadGrant] // the stored grants from the last read; requests read them without a lock
	now   func() time.Time
}

// OpenGrants reads the grants of an installation. The first start creates the signing key.
func OpenGrants(ctx context.Context, meta engine.Meta, cluster string, log *slog.Logger, providers func(context.Context) string) (*Grants, error) {
	seed, err := MetaSecret(ctx, meta, grantKeyMeta)
	if err != nil {
		return nil, err
	}
	g := &Grants{cluster: cluster, key: ed25519.NewKeyFromSeed(seed), providers: providers, log: log, now: time.Now}
	g.meta, g.name, g.apply = meta, grantsMeta, func(stored map[string]api.LoadGrant) { g.known.Store(&stored) }
	err = g.Follow(ctx)
	return g, err
}

// MetaSecret returns the 32 random bytes that are stored in meta under the given name. If no bytes
// are stored, MetaSecret creates and stores them. Processes that call MetaSecret at the same time
// get the same bytes.
func MetaSecret(ctx context.Context, meta engine.Meta, name string) ([]byte, error) {
	fresh := make([]byte, 32)
	rand.Read(fresh) // never fails
	for {
		key, err := meta.GetMeta(ctx, name)
		if err != nil || len(key) > 0 {
			return key, err
		}
		if stored, err := meta.SwapMeta(ctx, name, key, fresh); err != nil || stored {
			return fresh, err
		}
	}
}

// Create makes a grant in the name of an operator. It returns notify.KindInvalid if a field of the
// request is not allowed. It returns notify.KindConflict (load_providers) if a process calls a more
// harmful kind of provider than the request names.
func (g *Grants) Create(ctx context.Context, operator string, in api.LoadGrantRequest) (api.LoadGrant, error) {
	if err := checkGrant(&in); err != nil {
		return api.LoadGrant{}, err
	}
	now := g.now()
	made := api.LoadGrant{
		ID: "lg_" + notify.NewBase(now).String(), Cluster: g.cluster, Hosts: in.Hosts, Rate: in.Rate, Targets: in.Targets, Providers: in.Providers,
		CreatedAt: now.UTC().Truncate(time.Second), ExpiresAt: now.Add(time.Duration(in.Seconds) * time.Second).UTC().Truncate(time.Second), By: operator, Reason: in.Reason,
	}
	if err := g.checkProviders(ctx, &made); err != nil {
		return api.LoadGrant{}, err
	}
	if err := notify.BeforeAct(ctx); err != nil {
		return api.LoadGrant{}, err
	}
	full := false
	err := g.set(ctx, func(all map[string]api.LoadGrant) bool {
		full = holding(all, now) >= maxGrants
		if !full {
			forgetGrants(all, now)
			all[made.ID] = made
		}
		return !full
	})
	if err == nil && full {
		err = &notify.Error{Kind: notify.KindConflict, Code: "load_grants_full", Msg: fmt.Sprintf("%d load grants are active or pending, which is the maximum; revoke some of them", maxGrants)}
	}
	if err != nil {
		return api.LoadGrant{}, err
	}
	g.log.Warn("load granted", "grant", made.ID, "by", operator, "rate", made.Rate, "hosts", made.Hosts, "providers", made.Providers, "until", made.ExpiresAt)
	made.State, made.Token = g.stateOf(&made), api.SignLoadGrant(made, g.key)
	return made, nil
}

// forgetGrants removes grants that expired more than keepGrant ago. If there are still listGrants
// or more, it also removes expired and revoked grants, the oldest first.
func forgetGrants(all map[string]api.LoadGrant, now time.Time) {
	for _, id := range slices.Sorted(maps.Keys(all)) { // ids sort by age
		one := all[id]
		over := one.RevokedBy != "" || !now.Before(one.ExpiresAt)
		if now.Sub(one.ExpiresAt) > keepGrant || over && len(all) >= listGrants {
			delete(all, id)
		}
	}
}

func holding(all map[string]api.LoadGrant, now time.Time) (n int) {
	for _, x := range all {
		if now.Before(x.ExpiresAt) && x.RevokedBy == "" {
			n++
		}
	}
	return n
}

func checkGrant(in *api.LoadGrantRequest) error {
	bad := func(field, rule string) error { return notify.Invalid("bad_load_grant", field, rule) }
	switch {
	case in.Seconds < 1 || in.Seconds > int64(maxGrantFor/time.Second):
		return bad("seconds", "must be from 1 to 86,400, because a grant is valid for one day at most")
	case !(in.Rate >= 1 && in.Rate <= 1e9):
		return bad("rate", "must be from 1 to 1,000,000,000 messages a second")
	case len(in.Targets) == 0 || len(in.Targets) > len(api.GrantTargets) || slices.ContainsFunc(in.Targets, func(t string) bool { return !slices.Contains(api.GrantTargets, t) }):
		return bad("targets", "must be one or more of "+strings.Join(api.GrantTargets, ", "))
	case !slices.Contains(api.ProviderModes, in.Providers):
		return bad("providers", "must be one of "+strings.Join(api.ProviderModes, ", "))
	case len(in.Hosts) < 1 || len(in.Hosts) > 20 || slices.ContainsFunc(in.Hosts, func(h string) bool {
		return h == "" || len(h) > 255 || strings.ContainsAny(h, "*/@ ")
	}):
		return bad("hosts", "must be 1 to 20 hosts of the form HOST or HOST:PORT")
	case len(in.Reason) > 512:
		return bad("reason", fmt.Sprintf("must have at most 512 bytes, but has %d", len(in.Reason)))
	}
	return nil
}

// checkProviders returns an error if a process calls a more harmful kind of provider than the grant
// x names.
func (g *Grants) checkProviders(ctx context.Context, x *api.LoadGrant) error {
	if has := g.providers(ctx); slices.Index(api.ProviderModes, has) > slices.Index(api.ProviderModes, x.Providers) {
		return &notify.Error{
			Kind: notify.KindConflict, Code: "load_providers", Field: "providers",
			Msg: "the workers of this cluster call " + has + " providers, but the grant allows only " + x.Providers + " providers",
		}
	}
	return nil
}

// Change approves or revokes a grant in the name of an operator. Operators cannot approve grants
// that they made themselves. Change returns notify.KindNotFound for an unknown grant.
func (g *Grants) Change(ctx context.Context, id, operator, to string) (out api.LoadGrant, err error) {
	if to != "approved" && to != "revoked" {
		return out, notify.Invalid("bad_value", "to", fmt.Sprintf("must be \"approved\" or \"revoked\", not %q", to))
	}
	if err := notify.BeforeAct(ctx); err != nil {
		return out, err
	}
	var refused error
	err = g.set(ctx, func(all map[string]api.LoadGrant) bool {
		x, ok := all[id]
		refused = nil
		switch state := g.stateOf(&x); {
		case !ok:
			refused = notify.NotFound("load_grant")
		case to == "revoked":
			x.RevokedBy = operator
		case state != api.GrantPending:
			refused = &notify.Error{Kind: notify.KindConflict, Code: "load_grant_state", Msg: "the load grant is " + state + ", so it cannot be approved"}
		case x.By == operator:
			refused = &notify.Error{Kind: notify.KindForbidden, Code: "load_grant_own", Msg: "a second operator must approve a grant for real providers, but you made this grant"}
		default:
			x.ApprovedBy = operator
		}
		if refused == nil {
			all[id] = x
		}
		out = x
		return refused == nil
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return api.LoadGrant{}, err
	}
	g.log.Warn("load grant "+to, "grant", id, "by", operator)
	out.State = g.stateOf(&out)
	return out, nil
}

func (g *Grants) stateOf(x *api.LoadGrant) string {
	switch {
	case x.RevokedBy != "":
		return api.GrantRevoked
	case !g.now().Before(x.ExpiresAt):
		return api.GrantExpired
	case x.Providers == api.ProvidersReal && x.ApprovedBy == "":
		return api.GrantPending
	}
	return api.GrantActive
}

// List returns the grants, newest first.
func (g *Grants) List(ctx context.Context) (api.LoadGrants, error) {
	if err := g.Follow(ctx); err != nil {
		return api.LoadGrants{}, err
	}
	out := api.LoadGrants{Items: []api.LoadGrant{}}
	for _, x := range *g.known.Load() {
		x.State = g.stateOf(&x)
		out.Items = append(out.Items, x)
	}
	slices.SortFunc(out.Items, func(a, b api.LoadGrant) int { return strings.Compare(b.ID, a.ID) })
	return out, nil
}

// Check returns the grant of a token, from the last read of this process. The parameter host is the
// host to which the request was sent. Check returns notify.KindForbidden if the grant is not active
// or is not valid for this host. The code of this error begins with "load_".
func (g *Grants) Check(token, host string) (api.LoadGrant, error) {
	claimed, err := api.ReadLoadToken(token, g.key.Public().(ed25519.PublicKey))
	if err != nil {
		return claimed, forbidden("load_grant_malformed", "the token is not a token of a load grant of this cluster")
	}
	x, ok := (*g.known.Load())[claimed.ID]
	if !ok { // another process has just made the grant, or the grant ended long ago
		return x, forbidden("load_grant_unknown", "this process does not know the load grant of the token")
	}
	x.State = g.stateOf(&x)
	switch {
	case x.State == api.GrantPending:
		return x, forbidden("load_grant_pending", "the load grant names real providers and waits for a second operator's approval")
	case x.State == api.GrantExpired:
		return x, forbidden("load_grant_expired", "the load grant has expired")
	case x.State == api.GrantRevoked:
		return x, forbidden("load_grant_revoked", "the load grant was revoked")
	case !x.Covers(host):
		return x, forbidden("load_grant_host", "the load grant does not name this host")
	}
	return x, nil
}

// CheckStored reads the stored grants and then does the same as Check. It also returns an error if
// a process calls a more harmful kind of provider than the grant names.
func (g *Grants) CheckStored(ctx context.Context, token, host string) (api.LoadGrant, error) {
	if err := g.Follow(ctx); err != nil {
		return api.LoadGrant{}, err
	}
	x, err := g.Check(token, host)
	if err == nil {
		err = g.checkProviders(ctx, &x)
	}
	return x, err
}

func forbidden(code, msg string) error {
	return &notify.Error{Kind: notify.KindForbidden, Code: code, Msg: msg}
}
