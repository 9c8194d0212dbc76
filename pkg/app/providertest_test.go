package app

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
)

// A provider can be tested although its circuit is held, and the circuit stays held. A test that is
// not possible here is refused with a reason.
func TestProviderWhileHeld(t *testing.T) {
	t.Parallel()
	twilio := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, token, _ := r.BasicAuth(); user != "AC1" || token != "right" {
			w.WriteHeader(401)
			_, _ = w.Write([]byte(`{"code":20003}`))
			return
		}
		_, _ = w.Write([]byte(`{"status":"active"}`))
	}))
	t.Cleanup(twilio.Close)
	cfg := testConfig(t, t.TempDir())
	cfg.Providers.Stub = false
	cfg.Providers.Twilio.URL = twilio.URL
	cfg.Providers.Twilio.Accounts = []provider.TwilioAccount{{SID: "AC1", Token: "right", From: "+15550000000"}, {SID: "AC2", Token: "wrong", From: "+15550000000"}}
	l := run(t, cfg, quick)
	ctx := t.Context()
	if _, err := l.client.SetCircuit(ctx, "provider:twilio", "open"); err != nil {
		t.Fatal(err)
	}
	out, err := l.client.TestProvider(ctx, "twilio", api.ProviderTestRequest{})
	if err != nil || out.OK || !out.DryRun || out.Provider != "twilio" || len(out.Items) != 2 || out.Items[0].Verdict != "ok" || out.Items[1].Verdict != "credentials_refused" || out.Items[1].Code != "twilio_20003" {
		t.Errorf("%+v, %v", out, err)
	}
	if out, err = l.client.TestProvider(ctx, "twilio:AC1", api.ProviderTestRequest{}); err != nil || !out.OK || len(out.Items) != 1 {
		t.Errorf("one account: %+v, %v", out, err)
	}
	list, err := l.client.Circuits(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Items {
		if c.Name == "provider:twilio" && (c.State != "open" || !c.Pinned || c.Code != "circuit_held") {
			t.Errorf("the circuit: %+v", c)
		}
	}
	refused := func(n *Node, name, to, code string) {
		t.Helper()
		_, err := views{n}.testProvider(ctx, name, api.ProviderTestRequest{To: to})
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != code {
			t.Errorf("%s to %q: %v, want %s", name, to, err, code)
		}
	}
	refused(l.Node, "pager", "", "provider_not_found")
	refused(l.Node, "apns:1", "", "provider_not_found")
	refused(l.Node, "twilio:AC3", "", "provider_not_found")
	refused(l.Node, "twilio", "ann@example.com", "bad_address")
	refused(l.Node, "apns", "", "provider_not_configured")
	refused(&Node{cfg: cfg, provs: l.provs}, "twilio", "", "no_workers")
}
