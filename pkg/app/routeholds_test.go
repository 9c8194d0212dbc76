package app

import (
	"errors"
	"slices"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A provider that an operator holds is not called, across a restart, while others are called. It is
// called again when its circuit is reset.
func TestHeldProvider(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	l := run(t, cfg, quick)
	ctx := t.Context()
	if _, err := l.client.SetCircuit(ctx, "provider:pager", "open"); notify.KindOf(err) != notify.KindNotFound {
		t.Errorf("a provider there is not: %v", err)
	}
	if _, err := l.client.SetCircuit(ctx, "provider:twilio", "closed"); notify.KindOf(err) != notify.KindInvalid {
		t.Errorf("held closed: %v", err)
	}
	rows, err := l.client.Audit(ctx, nil, 10)
	if err != nil || len(rows) != 2 || rows[0].Result != "refused: circuit_not_found" || rows[1].Result != "refused: not_settable" {
		t.Errorf("two refused calls left %+v, %v", rows, err)
	}
	away := errors.New("the audit log is away")
	for _, name := range []string{"provider:twilio", "caller:shop"} {
		if _, err := l.circuits.Set(notify.WithBeforeAct(ctx, func() error { return away }), name, "open"); !errors.Is(err, away) {
			t.Errorf("%s without a record: %v", name, err)
		}
	}
	if list, err := l.client.Circuits(ctx); err != nil || slices.ContainsFunc(list.Items, func(c api.Circuit) bool { return c.Pinned }) {
		t.Errorf("held without a record: %+v, %v", list, err)
	}
	if c, err := l.client.SetCircuit(ctx, "provider:twilio", "open"); err != nil || c.State != "open" || !c.Pinned {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	l = run(t, cfg, quick)
	text := push("ann", "x")
	text.Content.Title = ""
	text.Channel, text.Category, text.To.Address = "sms", "otp", "+4915112345678"
	held, err := l.client.Send(ctx, text, "")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.client.Send(ctx, push("ann", "x"), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, other.NotificationID, "DELIVERED")
	find := func() (c api.Circuit) {
		t.Helper()
		list, err := l.client.Circuits(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range list.Items {
			if one.Name == "provider:twilio" {
				c = one
			}
		}
		return c
	}
	if c := find(); c.State != "open" || !c.Pinned {
		t.Errorf("after the restart: %+v", c)
	}
	if st, err := l.client.Notification(ctx, held.NotificationID); err != nil || st.Status == "SENT" {
		t.Errorf("while it is held: %+v, %v", st, err)
	}
	if c, err := l.client.SetCircuit(ctx, "provider:twilio", "reset"); err != nil || c.Pinned {
		t.Errorf("reset: %+v, %v", c, err)
	}
	l.becomes(t, held.NotificationID, "DELIVERED")
}
