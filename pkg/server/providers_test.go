package server

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A test of a provider is on record as a dry run or as one that sends, without the
// address.
func TestProviderTestIsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var asked []string
	s := w.start(t, Config{}, func(d *Deps) {
		d.TestProvider = func(ctx context.Context, name string, in api.ProviderTestRequest) (api.ProviderTest, error) {
			asked = append(asked, name+" "+in.To)
			return api.ProviderTest{Provider: name, OK: true, Items: []api.ProviderTrial{}}, notify.BeforeAct(ctx)
		}
	})
	tok := token(t, "sre", api.ScopeOperate)
	for _, body := range []string{`{}`, `{"to":"+4915112345678"}`} {
		if got := ask(s, "POST", "/v1/ops/providers/twilio/test", tok, body); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	if strings.Join(asked, ",") != "twilio ,twilio +4915112345678" {
		t.Errorf("asked %q", asked)
	}
	acts, err := (&deadletter.AuditLog{Store: w.later.Audit()}).Acts(t.Context(), 0, 10)
	if err != nil || len(acts) != 2 || acts[0].Action != "provider.test" || acts[1].Action != "provider.test-send" || acts[1].Target != "twilio" {
		t.Fatalf("%+v, %v", acts, err)
	}
	if b, err := json.Marshal(acts); err != nil || strings.Contains(string(b), "49151") {
		t.Errorf("%s, %v", b, err)
	}
}
