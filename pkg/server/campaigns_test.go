package server

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
)

// fakeHolds are the holds that were set.
type fakeHolds map[string]api.CampaignHold

func (f fakeHolds) Get(id string) (api.CampaignHold, bool) {
	h, ok := f[id]
	return h, ok
}

func (f fakeHolds) Set(_ context.Context, id, by string, to api.CampaignChange) (api.CampaignHold, error) {
	h := f[id]
	if to.Paused != nil {
		h.Paused = *to.Paused
	}
	if to.Rate != nil {
		h.Rate = *to.Rate
	}
	h.By, h.Reason = by, to.Reason
	f[id] = h
	return h, nil
}

// A caller holds its own campaigns back and no other's; an operator any, and that is
// in the audit log.
func TestSetCampaign(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.camps[campaign] = engine.Campaign{ID: campaign, Caller: "shop"}
	holds := fakeHolds{}
	var log *deadletter.AuditLog
	s := w.start(t, Config{}, func(d *Deps) { d.CampaignHolds, log = holds, d.Audit })
	shop, blog := token(t, "shop", api.ScopeSend, api.ScopeRead), token(t, "blog", api.ScopeSend)
	path := "/v1/campaigns/" + campaign
	for _, c := range []struct {
		token, body, code string
		status            int
	}{
		{blog, `{"paused":true}`, "campaign_not_found", http.StatusNotFound},
		{token(t, "shop", api.ScopeRead), `{"paused":true}`, "scope_missing", http.StatusForbidden},
		{shop, `{}`, "required", http.StatusUnprocessableEntity},
		{shop, `{"rate":0.01}`, "out_of_range", http.StatusUnprocessableEntity},
		{shop, `{"rate":-1}`, "out_of_range", http.StatusUnprocessableEntity},
		{shop, `{"rate":1e9}`, "out_of_range", http.StatusUnprocessableEntity},
		{shop, `{"pause":true}`, "unknown_field", http.StatusUnprocessableEntity},
		{shop, `{"paused":true,"reason":"a bad template"}`, "", http.StatusOK},
		{shop, `{"rate":500}`, "", http.StatusOK},
	} {
		got := ask(s, "PATCH", path, c.token, c.body)
		if got.status != c.status || c.code != "" && got.problem(t).Code != c.code {
			t.Errorf("%s: %d %s, want %d %s", c.body, got.status, got.body, c.status, c.code)
		}
	}
	if h := holds[campaign]; !h.Paused || h.Rate != 500 || h.By != "shop" {
		t.Errorf("%+v", h)
	}
	if sum := get[api.Summary](t, s, path, shop); sum.Hold == nil || !sum.Hold.Paused || sum.Hold.Rate != 500 {
		t.Errorf("shown: %+v", sum.Hold)
	}
	if got := ask(s, "PATCH", path, token(t, "ann", api.ScopeOperate, api.ScopeSend), `{"paused":false}`); got.status != http.StatusOK {
		t.Errorf("an operator: %d %s", got.status, got.body)
	}
	rows, err := log.Acts(t.Context(), 0, 10)
	if err != nil || len(rows) == 0 || rows[len(rows)-1].Action != "campaign.resume" {
		t.Errorf("audit: %+v, %v", rows, err)
	}
}

// A caller lists its own campaigns, page by page; an operator those of every caller.
func TestListCampaigns(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for i := range 5 {
		id := fmt.Sprintf("cmp_%026d", i)
		w.camps[id] = engine.Campaign{ID: id, Caller: []string{"shop", "bank"}[i%2], Created: int64(i)}
	}
	s := w.start(t, Config{}, func(d *Deps) { d.CampaignHolds = fakeHolds{"cmp_00000000000000000000000004": {Paused: true}} })
	list := func(token, query string) (ids string) {
		t.Helper()
		for cursor := ""; ; {
			page := get[api.CampaignPage](t, s, "/v1/campaigns?limit=2&cursor="+cursor+query, token)
			for _, c := range page.Items {
				ids += c.CampaignID[len(c.CampaignID)-1:]
				if paused := c.Hold != nil && c.Hold.Paused; paused != (c.CreatedAt.UnixMilli() == 4) {
					t.Errorf("%s: hold %+v", c.CampaignID, c.Hold)
				}
			}
			if cursor = page.Cursor; cursor == "" {
				return ids
			}
		}
	}
	shop, ann := token(t, "shop", api.ScopeRead), token(t, "ann", api.ScopeRead, api.ScopeObserve)
	for _, c := range []struct{ token, query, want string }{
		{shop, "", "420"}, {token(t, "thief", api.ScopeRead), "", ""}, {ann, "", "43210"}, {ann, "&caller=bank", "31"},
	} {
		if got := list(c.token, c.query); got != c.want {
			t.Errorf("%q: campaigns %s, want %s", c.query, got, c.want)
		}
	}
	if got := ask(s, "GET", "/v1/campaigns?caller=bank", shop, ""); got.status != http.StatusUnprocessableEntity {
		t.Errorf("another's by name: %d %s", got.status, got.body)
	}
}
