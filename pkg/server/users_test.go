package server

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestPutUser(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	tok := token(t, "crm", api.ScopeUsers, api.ScopeRead)
	f := func(body string, status int, code, field string) {
		t.Helper()
		got := ask(s, "PUT", "/v1/users/u1", tok, body)
		if got.status != status {
			t.Errorf("%s: %d %s", body, got.status, got.body)
			return
		}
		if status >= 400 {
			if p := got.problem(t); p.Code != code || p.Field != field {
				t.Errorf("%s: %s", body, got.body)
			}
		}
	}
	f(``, 400, "bad_json", "")
	f(`{`, 400, "bad_json", "")
	f(`{} {}`, 400, "bad_json", "")
	f("{\"time_zone\":\"\xff\"}", 400, "bad_utf8", "time_zone")
	f(`[]`, 422, "wrong_type", "")
	f(`{"time_zone":7}`, 422, "wrong_type", "time_zone")
	f(`{"timezone":"UTC"}`, 422, "unknown_field", "timezone")
	f(`{"Time_zone":"UTC"}`, 422, "unknown_field", "Time_zone")
	f(`{"time_zone":"UTC","time_zone":"CET"}`, 422, "duplicate_key", "time_zone")
	f(`{"quiet_hours":{"from":"22:00","until":"7"}}`, 422, "unknown_field", "quiet_hours.until")
	f(`{"user_id":"u2"}`, 422, "wrong_user", "user_id")
	if len(w.users) != 0 {
		t.Errorf("stored: %v", w.users)
	}
	f(`{"addresses":{"sms":["+14155550100"]},"opt_out":["marketing"],"quiet_hours":{"from":"22:00","to":"07:00"},"time_zone":"CET","suppressed":{"x":"mine"}}`, 200, "", "")
	p := w.users["u1"]
	if p.User != "u1" || p.Addresses["sms"][0] != "+14155550100" || p.OptOut[0] != "marketing" || p.QuietHours.To != "07:00" || p.TimeZone != "CET" || p.Suppressed != nil {
		t.Errorf("%+v", p)
	}
	// What providers said stays.
	p.Suppressed = map[string]string{"+14155550100": "twilio_21610"}
	w.users["u1"] = p
	f(`{"opt_out":["sms"]}`, 200, "", "")
	if w.users["u1"].Suppressed == nil || w.users["u1"].Addresses != nil {
		t.Errorf("%+v", w.users["u1"])
	}
	f(`{"version":1}`, 409, "version_changed", "")
	f(`{"version":2,"time_zone":"UTC"}`, 200, "", "")
	u := get[api.User](t, s, "/v1/users/u1", tok)
	if u.Version != 3 || u.TimeZone != "UTC" || u.Suppressed["+14155550100"] == "" {
		t.Errorf("%+v", u)
	}
	if got := ask(s, "PUT", "/v1/users/u1", tok, `{}`, header("Content-Type", "text/plain")); got.status != 415 {
		t.Errorf("%d", got.status)
	}
	if got := ask(s, "GET", "/v1/users/"+strings.Repeat("x", 129), tok, ""); got.status != 422 {
		t.Errorf("%d", got.status)
	}
	if got := ask(s, "GET", "/v1/users/a%2Fb%20c", tok, ""); got.status != 404 {
		t.Errorf("%d", got.status)
	}
}

func TestUserHistoryAndItsCursors(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	for i := range byte(5) {
		w.single(10+i, "shop", "u1")
	}
	w.single(20, "bank", "u1")
	w.single(21, "shop", "u2")
	shop := token(t, "shop", api.ScopeRead)
	page := get[api.UserHistory](t, s, "/v1/users/u1/notifications?limit=2", shop)
	if len(page.Items) != 2 || page.Items[0].NotificationID != "ntf_"+baseOf(14).String() || page.Cursor == "" {
		t.Fatalf("%+v", page)
	}
	total := 2
	for c := page.Cursor; c != ""; {
		p := get[api.UserHistory](t, s, "/v1/users/u1/notifications?limit=2&cursor="+c, shop)
		total, c = total+len(p.Items), p.Cursor
	}
	if total != 5 {
		t.Errorf("%d of 5", total)
	}

	refused := func(name, path, tok string) {
		t.Helper()
		if got := ask(s, "GET", path, tok, ""); got.status != 422 || got.problem(t).Code != "bad_cursor" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	const path = "/v1/users/u1/notifications?cursor="
	refused("another caller's", path+page.Cursor, token(t, "bank", api.ScopeRead))
	refused("an operator's", path+page.Cursor, token(t, "shop", api.ScopeRead, api.ScopeOperate))
	refused("another user's", "/v1/users/u2/notifications?cursor="+page.Cursor, shop)
	refused("of another listing", "/v1/ops/dead-letters?cursor="+page.Cursor, token(t, "shop", api.ScopeOperate))
	refused("nonsense", path+"!!", shop)
	refused("too short", path+"AAAA", shop)
	for i := range page.Cursor {
		c := []byte(page.Cursor)
		if c[i] = 'A'; page.Cursor[i] == 'A' {
			c[i] = 'B'
		}
		refused("changed", path+string(c), shop)
	}
	other := newWorld().start(t, Config{}, nil) // another process, another key
	if got := ask(other, "GET", path+page.Cursor, shop, ""); got.status != 422 {
		t.Errorf("%d", got.status)
	}

	all := get[api.UserHistory](t, s, "/v1/users/u1/notifications", token(t, "sre", api.ScopeRead, api.ScopeOperate))
	if len(all.Items) != 6 {
		t.Errorf("an operator sees %d of 6", len(all.Items))
	}
	bank := get[api.UserHistory](t, s, "/v1/users/u1/notifications?caller=bank", token(t, "sre", api.ScopeRead, api.ScopeOperate))
	if len(bank.Items) != 1 || bank.Items[0].Caller != "bank" {
		t.Errorf("%+v", bank)
	}
	if got := ask(s, "GET", "/v1/users/u1/notifications?caller=bank", shop, ""); got.status != 422 {
		t.Errorf("a caller asked for another's: %d %s", got.status, got.body)
	}
	if page.Omits != nil {
		t.Errorf("it omits %v", page.Omits)
	}
	partial := w.start(t, Config{}, func(d *Deps) { d.OmitsFanouts = true })
	if page := get[api.UserHistory](t, partial, "/v1/users/u1/notifications", shop); !slices.Equal(page.Omits, []string{api.OmitsFanouts}) {
		t.Errorf("a history of singles omits %v", page.Omits)
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	replayed := done(notify.Failed)
	replayed.Key.Epoch, replayed.Index = 2, []uint32{0}
	id := w.single(1, "shop", "u1", done(notify.Failed), replayed)
	w.dead = []engine.DeadLetter{
		{ID: id, Epoch: 0, Caller: "shop", Channel: "sms", Seq: 1, Class: "ambiguous", State: "replayed", FirstFailed: t0},
		{ID: id, Epoch: 1, Caller: "shop", Channel: "sms", Seq: 2, State: "dead"},
		{ID: notify.ID{Base: baseOf(2)}, Caller: "bank", Channel: "push", Seq: 1, State: "dead"},
	}
	sre := token(t, "sre", api.ScopeOperate)
	page := get[api.DeadLetterPage](t, s, "/v1/ops/dead-letters?limit=2", sre)
	if len(page.Items) != 2 || page.Items[0].FirstFailedAt.UnixMilli() != t0 {
		t.Fatalf("%+v", page)
	}
	rest := get[api.DeadLetterPage](t, s, "/v1/ops/dead-letters?limit=2&cursor="+page.Cursor, sre)
	if len(rest.Items) != 1 || rest.Cursor != "" {
		t.Errorf("%+v", rest)
	}
	if got := ask(s, "GET", "/v1/ops/dead-letters?channel=sms&cursor="+page.Cursor, sre, ""); got.status != 422 {
		t.Errorf("a cursor of another filter: %d", got.status)
	}
	f := func(query string, epoch uint16, status int) {
		t.Helper()
		got := ask(s, "GET", "/v1/ops/dead-letters/"+query, sre, "")
		if got.status != status {
			t.Errorf("%s: %d %s", query, got.status, got.body)
			return
		}
		if status != 200 {
			return
		}
		var d api.DeadLetter
		if got.into(t, &d); d.Epoch != epoch || d.Status != map[uint16]string{0: "UNKNOWN", 1: "FAILED"}[epoch] {
			t.Errorf("%s: %+v", query, d)
		}
	}
	f(id.String(), 1, 200) // epoch 2 failed and is not indexed yet
	f(id.String()+"?epoch=0", 0, 200)
	f(id.String()+"?epoch=2", 0, 404)
	f(id.String()+"?epoch=70000", 0, 422)
	f("ntf_x", 0, 404)
	for _, q := range []string{"channel=smoke", "category=x", "state=alive", "since=yesterday", "limit=1001", "other=1"} {
		if got := ask(s, "GET", "/v1/ops/dead-letters?"+q, sre, ""); got.status != 422 {
			t.Errorf("%s: %d", q, got.status)
		}
	}
}

func TestReceipts(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var got string
	s := w.start(t, Config{}, func(d *Deps) {
		d.Receipts = map[string]Receipt{"twilio": {Signature: "X-Twilio-Signature", Take: func(r *http.Request, body []byte) error {
			if r.Header.Get("X-Twilio-Signature") != "good" {
				return &notify.Error{Kind: notify.KindForbidden, Code: "bad_signature", Msg: "the signature does not fit"}
			}
			again, err := io.ReadAll(r.Body)
			got = string(body)
			if err != nil || string(again) != got {
				return errors.New("the body cannot be read from the request")
			}
			return nil
		}}}
	})
	if r := ask(s, "POST", "/v1/receipts/twilio", "", "a=b", header("X-Twilio-Signature", "good")); r.status != 204 || got != "a=b" || r.body != "" {
		t.Errorf("%d %q %q", r.status, got, r.body)
	}
	if r := ask(s, "POST", "/v1/receipts/twilio", "", "a=b", header("X-Twilio-Signature", "bad")); r.status != 403 || r.problem(t).Code != "bad_signature" {
		t.Errorf("%d %s", r.status, r.body)
	}
	unread := func(r *http.Request) { r.Body = io.NopCloser(errReader{t}) }
	if r := ask(s, "POST", "/v1/receipts/twilio", "", "a=b", unread); r.status != 401 || r.problem(t).Code != "bad_signature" {
		t.Errorf("without the header of the signature: %d %s", r.status, r.body)
	}
	if r := ask(s, "POST", "/v1/receipts/else", "", "a=b"); r.status != 404 {
		t.Errorf("%d %s", r.status, r.body)
	}
}
