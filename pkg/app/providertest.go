package app

import (
	"context"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/users"
)

// testTime is the time limit of a provider test. It must be below the server's WriteTimeout.
const testTime = 20 * time.Second

// testProvider calls a provider as the workers of this process would call it. It ignores the circuit
// breaker, because operators test a provider mostly when its circuit is open. Only one test runs at a
// time.
func (n views) testProvider(ctx context.Context, name string, in api.ProviderTestRequest) (out api.ProviderTest, err error) {
	of, _, account := strings.Cut(name, ":")
	p := n.provs
	var test func(ctx context.Context, to string) []provider.Trial
	var ch notify.Channel
	switch of {
	case "apns", "fcm":
		if ch = notify.Push; account {
			return out, notify.NotFound("provider")
		}
		if p.apns != nil && of == "apns" {
			test = p.apns.Test
		} else if p.fcm != nil && of == "fcm" {
			test = p.fcm.Test
		}
	case "twilio":
		if ch = notify.SMS; p.twilio != nil {
			test = func(ctx context.Context, to string) []provider.Trial { return p.twilio.Test(ctx, name, to) }
		}
	case "sendgrid":
		if ch = notify.Email; p.sendgrid != nil {
			test = func(ctx context.Context, to string) []provider.Trial { return p.sendgrid.Test(ctx, name, to) }
		}
	default:
		return out, notify.NotFound("provider")
	}
	to, err := testAddress(ch, of, in.To)
	if err != nil {
		return out, err
	}
	switch {
	case !n.hasTask(func(t cluster.Tasks) bool { return t.Calls(ch) }):
		return out, &notify.Error{Kind: notify.KindConflict, Code: "no_workers", Msg: "this process has no workers of " + ch.String() + "; ask a process that has them"}
	case test == nil && n.cfg.Providers.Stub:
		return out, &notify.Error{Kind: notify.KindConflict, Code: "provider_not_configured", Msg: "this process has providers.stub, which accepts everything, so there is no provider to test"}
	case test == nil:
		return out, &notify.Error{Kind: notify.KindConflict, Code: "provider_not_configured", Msg: "this process has no settings of providers." + of}
	}
	ctx, stop := context.WithTimeout(ctx, testTime)
	defer stop()
	select {
	case n.testTurn <- struct{}{}:
		defer func() { <-n.testTurn }()
	case <-ctx.Done():
		return out, notify.Unavailable("providers", time.Second, ctx.Err())
	}
	if err := notify.BeforeAct(ctx); err != nil {
		return out, err
	}
	out = api.ProviderTest{Provider: of, DryRun: to == "", OK: true, Items: []api.ProviderTrial{}}
	for _, t := range test(ctx, to) {
		out.OK = out.OK && t.Verdict == provider.VerdictOK
		out.Items = append(out.Items, api.ProviderTrial{
			Account: t.Account, Verdict: t.Verdict, Called: t.Called, Status: t.Status,
			Class: t.Class.String(), Code: t.Code, Detail: t.Detail, TookMS: t.Took.Milliseconds(),
		})
	}
	if len(out.Items) == 0 {
		return out, notify.NotFound("provider")
	}
	return out, nil
}

// testAddress checks the address to which a test sends, and returns the address. If a push address
// lacks the prefix of the provider, such as "apns:", testAddress adds the prefix.
func testAddress(ch notify.Channel, of, to string) (string, error) {
	if to == "" {
		return "", nil
	}
	if ch == notify.Push && !strings.HasPrefix(to, of+":") {
		to = of + ":" + to
	}
	if err := users.ValidateAddress(ch, to); err != nil {
		return "", notify.Invalid("bad_address", "to", err.Error())
	}
	return to, nil
}
