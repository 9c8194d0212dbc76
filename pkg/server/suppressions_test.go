package server

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// fakeSuppressions lists two entries, one a page; each address but "+0" is listed.
type fakeSuppressions struct{}

var suppressed = []users.Suppression{
	{User: "ann", Channel: notify.SMS, Address: "+4915112345678", Code: "twilio_21211"},
	{User: "bob", Channel: notify.Email, Address: "bob@example.com", Code: "sendgrid_bounce"},
}

func (fakeSuppressions) Suppressions(_ context.Context, q users.SuppressionQuery) ([]users.Suppression, []byte, error) {
	list := slices.DeleteFunc(slices.Clone(suppressed), func(e users.Suppression) bool {
		return q.User != "" && e.User != q.User || q.Channel != 0 && e.Channel != q.Channel || q.Code != "" && e.Code != q.Code || string(q.After) >= e.User
	})
	if len(list) > q.Limit {
		return list[:q.Limit], []byte(list[q.Limit-1].User), nil
	}
	return list, nil, nil
}

func (fakeSuppressions) LiftSuppression(ctx context.Context, _, address string) (int, bool, error) {
	if address == "+0" {
		return 0, false, nil
	}
	if err := notify.BeforeAct(ctx); err != nil {
		return 0, true, err
	}
	return 2, true, nil
}

// TestSuppressions: the list goes on by its cursor and is filtered; a lift says what
// became of it, and its row of the audit log which address it was and why.
func TestSuppressions(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var log *deadletter.AuditLog
	s := w.start(t, Config{}, func(d *Deps) { log = d.Audit })
	sre := token(t, "sre", api.ScopeOperate)
	var page api.Suppressions
	list := func(query string) []string {
		t.Helper()
		got := ask(s, "GET", "/v1/ops/suppressions"+query, sre, "")
		page = api.Suppressions{}
		if err := json.Unmarshal([]byte(got.body), &page); err != nil || got.status != 200 {
			t.Fatalf("%s: %d %s", query, got.status, got.body)
		}
		var users []string
		for _, e := range page.Items {
			users = append(users, e.UserID+" "+e.Channel+" "+e.Address+" "+e.Code)
		}
		return users
	}
	ann, bob := "ann sms +4915112345678 twilio_21211", "bob email bob@example.com sendgrid_bounce"
	f := func(query string, want ...string) {
		t.Helper()
		if got := list(query); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	f("", ann, bob)
	f("?limit=1", ann)
	next := page.Cursor
	f("?limit=1&cursor="+next, bob)
	f("?channel=email", bob)
	f("?code=twilio_21211", ann)
	f("?user_id=bob&channel=sms")
	for query, code := range map[string]string{"?channel=fax": "bad_channel", "?limit=1&channel=sms&cursor=" + next: "bad_cursor", "?who=me": "unknown_field"} {
		if got := ask(s, "GET", "/v1/ops/suppressions"+query, sre, ""); got.status != 422 || got.problem(t).Code != code {
			t.Errorf("%s: %d %s", query, got.status, got.body)
		}
	}
	lift := func(body string) reply {
		return ask(s, "POST", "/v1/ops/suppressions:lift", sre, body, header(api.HeaderReason, "repaired"))
	}
	if got := lift(`{"address":"+4915112345678","user_id":"ann"}`); got.status != 200 || strings.TrimSpace(got.body) != `{"address":"+4915112345678","lifted":2,"suppressed":true}` {
		t.Errorf("%d %s", got.status, got.body)
	}
	acts, err := log.Acts(t.Context(), 0, 10)
	if err != nil || len(acts) != 1 || acts[0].Reason != "repaired" || string(acts[0].Set) != `{"address":"+4915112345678","user_id":"ann"}` {
		t.Errorf("%+v, %v", acts, err)
	}
	for body, code := range map[string]string{`{"address":"+0"}`: "suppression_not_found", `{}`: "bad_address", `{"address":"x","user_id":"\u0000"}`: "bad_user_id"} {
		if got := lift(body); got.problem(t).Code != code {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}
