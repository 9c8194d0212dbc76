package server

import (
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// boundToken is a token for the users whose ids begin so.
func boundToken(t *testing.T, caller, users string, scopes ...string) string {
	t.Helper()
	signer, err := NewSigner(signingKey())
	if err != nil {
		t.Fatal(err)
	}
	tok, err := signer.Sign(TokenSpec{Caller: caller, Scopes: scopes, Users: users, Issuer: issuer, Audience: audience, TTL: time.Hour, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestListNotifications(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	id := func(n byte) string { return notify.ID{Base: baseOf(n)}.String() }
	w.single(0, "shop", "shop:old", done(notify.Delivered))
	w.single(1, "shop", "shop:ann", done(notify.Delivered))
	w.single(2, "bank", "bank:bob", done(notify.Failed))
	w.single(3, "shop", "eve", notify.Row{Done: true, Default: notify.Exception{State: notify.Failed, Code: "twilio_21211"}})
	w.single(4, "shop", "shop:ann")
	w.fanout(baseOf(5), "shop", campaign, 4, 2, func(int) []notify.Row {
		return []notify.Row{done(notify.Delivered, notify.Exception{Pos: 1, State: notify.Failed, Code: "apns_gone"})}
	})
	w.found[1].Envelope.Content.Template = "t1"
	w.found[4].Envelope.Accepted += 1000
	all := []string{id(5) + "-3", id(5) + "-2", id(5) + "-1", id(5) + "-0", id(4), id(3), id(2), id(1), id(0)}

	shop, sre := token(t, "shop", api.ScopeRead), token(t, "sre", api.ScopeObserve)
	f := func(path, tok string, want ...string) {
		t.Helper()
		for _, limit := range []string{"1", "2", "100"} {
			for _, most := range []int{0, 1, 3} { // a page may end before it is full
				w.listMost = most
				var got []string
				for cursor, pages := "", 0; ; pages++ {
					if pages > 20 {
						t.Fatalf("%s: no end", path)
					}
					page := get[api.UserHistory](t, s, path+"&limit="+limit+"&cursor="+cursor, tok)
					for _, x := range page.Items {
						got = append(got, x.NotificationID)
					}
					if cursor = page.Cursor; cursor == "" {
						break
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s, %s a page, %d read: %v, want %v", path, limit, most, got, want)
				}
			}
		}
	}
	bound := boundToken(t, "shop", "shop:", api.ScopeRead)
	const path = "/v1/notifications?"
	f(path, sre, all...)
	f(path+"caller=bank", sre, id(2))
	f(path, token(t, "bank", api.ScopeRead), id(2))
	f(path, token(t, "stranger", api.ScopeRead))
	f(path, shop, append(append([]string{}, all[:6]...), id(1), id(0))...)
	f(path+"status=FAILED", shop, id(5)+"-3", id(5)+"-1", id(3))
	f(path+"status=FAILED&channel=sms", sre, id(3), id(2))
	f(path+"status=ACCEPTED", shop, id(4))
	f(path+"channel=email", sre)
	f(path+"campaign="+campaign, shop, all[:4]...)
	f(path+"template=t1", shop, id(1))
	w.listMost = 0
	every := get[api.UserHistory](t, s, path, sre).Items
	for _, code := range []string{"apns_gone", "twilio_21211", "no_such"} {
		for _, status := range []string{"", "FAILED", "DELIVERED"} {
			var want []string
			for _, one := range every {
				if one.Code == code && (status == "" || one.Status == status) {
					want = append(want, one.NotificationID)
				}
			}
			if len(want) == 0 && code != "no_such" && status != "DELIVERED" {
				t.Errorf("nothing has the code %s", code)
			}
			f(path+"code="+code+"&status="+status, sre, want...)
		}
	}
	f(path+"since=2027-01-15T08:00:01Z", sre, id(4))
	f(path+"until=2027-01-15T08:00:01Z&channel=sms", sre, id(3), id(2), id(1), id(0))
	f(path, bound, id(4), id(1), id(0))

	// Of one user: the same filters, page by page.
	const user = "/v1/users/shop:ann/notifications?"
	f(user, shop, id(4), id(1))
	f(user+"status=DELIVERED", shop, id(1))
	f(user+"code=apns_gone", shop)
	f(user+"since=2027-01-15T08:00:01Z", sre, id(4))
	w.single(9, "shop", "shop:bob")
	w.single(10, "shop", "shop:bob")
	if page := get[api.UserHistory](t, s, "/v1/users/shop:bob/notifications?limit=1&since=2027-01-15T08:00:01Z", shop); len(page.Items) > 0 || page.Cursor != "" {
		t.Errorf("%+v: what follows is older than since", page)
	}
	w.found = w.found[:len(w.found)-2]
	f(user+"template=t1", sre, id(1))

	w.listMost = 0
	for q, want := range map[string]string{
		"channel=fax": "unknown_channel", "status=GONE": "bad_state", "campaign=x": "bad_campaign", "since=yesterday": "bad_time",
		"limit=0": "out_of_range", "caller=bank": "unknown_field", "color=red": "unknown_field", "cursor=AAAA": "bad_cursor",
	} {
		for _, path := range []string{path, "/v1/users/u1/notifications?"} {
			if got := ask(s, "GET", path+q, shop, ""); got.status != 422 || got.problem(t).Code != want {
				t.Errorf("%s%s: %d %s", path, q, got.status, got.body)
			}
		}
	}
	cursor := get[api.UserHistory](t, s, path+"limit=1", shop).Cursor
	for name, tok := range map[string]string{
		"another caller": token(t, "bank", api.ScopeRead), "an operator": token(t, "shop", api.ScopeRead, api.ScopeOperate),
		"a bound token": bound,
	} {
		if got := ask(s, "GET", path+"cursor="+cursor, tok, ""); got.status != 422 || got.problem(t).Code != "bad_cursor" {
			t.Errorf("the cursor of shop, used by %s: %d %s", name, got.status, got.body)
		}
	}
	if got := ask(s, "GET", path, token(t, "shop", api.ScopeSend), ""); got.status != 403 {
		t.Errorf("without the scope: %d", got.status)
	}
	byUser := w.start(t, Config{}, func(d *Deps) { d.List = nil })
	if got := ask(byUser, "GET", path, shop, ""); got.status != 422 || got.problem(t).Code != "list_needs_user" {
		t.Errorf("of a server whose history is by user: %d %s", got.status, got.body)
	}
}
