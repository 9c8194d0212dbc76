package trigger

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestOwn makes a trigger of the server's own twice. There is only one trigger, as it was made
// first. It is called at once, with a payload that is larger than a caller's may be.
func TestOwn(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		id := notify.NewBase(time.Now())
		payload := `{"text":"` + strings.Repeat("x", 3*MaxPayload) + `"}`
		url := base("shop") + "failed"
		row, created, err := p.svc.RegisterInternal(t.Context(), "shop", id, url, []byte(payload), traceparent)
		if err != nil || !created || string(row.Payload) != payload {
			t.Fatalf("%v, %v", created, err)
		}
		again, created, err := p.svc.RegisterInternal(t.Context(), "shop", id, url, []byte(`{"another":1}`), "")
		if err != nil || created || string(again.Payload) != payload || again.ID != row.ID {
			t.Fatalf("%+v, %v, %v", again, created, err)
		}
		p.run()
		pass(time.Second)
		p.want(row.ID, engine.TriggerFired)
		if calls := p.sink.of(row.ID); len(calls) != 1 || !strings.Contains(string(calls[0].body), payload) || calls[0].header.Get("webhook-id") != row.ID || calls[0].header.Get("traceparent") != traceparent {
			t.Errorf("%d calls", len(calls))
		}
		for _, c := range []struct{ caller, url, payload, code string }{
			{"shop", "https://other.example/", `{}`, "url_not_registered"},
			{"shop", "ftp://shop.example/x", `{}`, "url_scheme"},
			{"shop", url, `{`, "bad_json"},
			{"shop", url, `"` + strings.Repeat("x", MaxOwnPayload) + `"`, "payload_too_large"},
			{"nobody", url, `{}`, "no_secret"},
		} {
			b := notify.NewBase(time.Now())
			_, created, err := p.svc.RegisterInternal(t.Context(), c.caller, b, c.url, []byte(c.payload), "")
			if e, ok := errors.AsType[*notify.Error](err); created || !ok || e.Code != c.code {
				t.Errorf("%+v: %v, %v", c, created, err)
			}
			if rows, err := p.store.Triggers().Get(t.Context(), []string{idOf(b)}); err != nil || rows[0].ID != "" {
				t.Errorf("%s: stored %+v, %v", c.code, rows[0], err)
			}
		}
	})
}
