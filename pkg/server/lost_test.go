package server

import (
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
)

// What history cannot find since the log may have lost it is Gone, not missing;
// but what waits to become due is not in the history either, and is there.
func TestLostOrWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.findErr = &notify.Error{Kind: notify.KindGone, Code: history.CodeRecordLost, Msg: "it may have been lost"}
	s := w.start(t, Config{}, func(d *Deps) { d.Schedules = w.schedules() })
	tok := token(t, "shop", api.ScopeRead)
	one, fan := baseOf(1), baseOf(2)
	w.schedule(t, one, "shop", false)
	w.schedule(t, fan, "shop", true)
	for _, id := range []notify.ID{{Base: one}, {Base: fan, Index: 1, FanOut: true}} {
		if st := get[api.Status](t, s, "/v1/notifications/"+id.String(), tok); st.Status != "SCHEDULED" {
			t.Errorf("%s: %+v", id, st)
		}
	}
	if sum := get[api.Summary](t, s, "/v1/notifications/"+notify.ID{Base: fan}.String(), tok); sum.Counts["SCHEDULED"] != 3 || sum.Pending == nil || *sum.Pending != 0 {
		t.Errorf("%+v", sum)
	}
	id := notify.ID{Base: baseOf(3), Index: 1, FanOut: true}
	if got := ask(s, "GET", "/v1/notifications/"+id.String(), tok, ""); got.status != 410 || got.problem(t).Code != history.CodeRecordLost {
		t.Errorf("%d %s", got.status, got.body)
	}
}
