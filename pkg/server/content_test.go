package server

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestContent: who sent it and who operates read it, and a look at another caller's is
// on record.
func TestContent(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	id := w.single(1, "shop", "u1", done(notify.Delivered))
	var col notify.ReceiverWriter
	col.Append(notify.Receiver{User: []byte("u1"), Variables: []byte(`{"code":"42"}`)})
	e := &w.found[0].Envelope
	e.Content, e.Receivers = notify.Content{Body: "Your code is {{code}}", Variables: []byte(`{"a":1}`)}, col.Bytes()
	w.found[0].Address = []byte("+14155550100")
	w.single(2, "shop", "u2")
	w.users["u2"] = engine.Profile{User: "u2", Addresses: map[string][]string{"sms": {"+14155550123"}}}
	path := "/v1/notifications/" + id.String() + "/content"
	rows := func() string {
		return ask(s, "GET", "/v1/ops/audit", token(t, "sre", api.ScopeObserve), "").body
	}
	shop, sre := token(t, "shop", api.ScopeRead), token(t, "sre", api.ScopeOperate)
	c := get[api.NotificationContent](t, s, path, shop)
	if c.Content.Body != "Your code is {{code}}" || string(c.Variables) != `{"code":"42"}` || string(c.Content.Variables) != `{"a":1}` || c.FromProfile {
		t.Errorf("%+v", c)
	}
	if len(c.Addresses) != 1 || c.Addresses[0] != "***0100" {
		t.Errorf("addresses %v are not masked", c.Addresses)
	}
	if c := get[api.NotificationContent](t, s, path+"?address=full", shop); c.Addresses[0] != "+14155550100" {
		t.Errorf("%v in full", c.Addresses)
	}
	if c := get[api.NotificationContent](t, s, "/v1/notifications/"+notify.ID{Base: baseOf(2)}.String()+"/content", shop); !c.FromProfile || c.Addresses[0] != "***0123" {
		t.Errorf("of the profile: %+v", c)
	}
	if got := rows(); strings.Contains(got, "read-content") {
		t.Errorf("the caller's own is on record: %s", got)
	}
	get[api.NotificationContent](t, s, path, sre)
	if got := rows(); !strings.Contains(got, "notification.read-content") || !strings.Contains(got, id.String()) || strings.Contains(got, "5550100") {
		t.Errorf("an operator's look: %s", got)
	}
	for name, x := range map[string]struct {
		path, tok, code string
		status          int
	}{
		"another caller": {path, token(t, "bank", api.ScopeRead), "notification_not_found", 404},
		"an observer":    {path, token(t, "viewer", api.ScopeObserve), "scope_missing", 403},
		"a bound token":  {path, boundToken(t, "shop", "shop:", api.ScopeRead), "notification_not_found", 404},
		"a sender":       {path, token(t, "shop", api.ScopeSend), "scope_missing", 403},
		"no such mask":   {path + "?address=half", shop, "bad_address", 422},
	} {
		if got := ask(s, "GET", x.path, x.tok, ""); got.status != x.status || got.problem(t).Code != x.code || strings.Contains(got.body, "Your code") {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	w.findErr = &notify.Error{Kind: notify.KindGone, Code: "notification_gone", Msg: "the history of this notification has passed its retention"}
	if got := ask(s, "GET", path, shop, ""); got.status != 410 {
		t.Errorf("after its retention: %d %s", got.status, got.body)
	}
	for in, want := range map[string]string{"ann@example.com": "***@example.com", "+14155550100": "***0100", "abc": "***c", "": "***", "äöüäöü": "***öü"} {
		if got := maskAddress(in); got != want {
			t.Errorf("%q masked is %q, want %q", in, got, want)
		}
	}
}
