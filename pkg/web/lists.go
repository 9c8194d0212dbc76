package web

import (
	"net/url"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

const rowsShown = 50

func (p *Page) lanes(v *visit) error {
	lanes, err := v.client.Lanes(v.ctx)
	if err != nil {
		return err
	}
	return v.show("lanes", "Lanes", lanes.Items)
}

// setLane pauses a lane or lets it go on.
func (p *Page) setLane(v *visit) error {
	name, to := v.r.PostFormValue("lane"), v.r.PostFormValue("change")
	if to != "pause" && to != "resume" {
		return notify.Invalid("bad_value", "change", "pause or resume")
	}
	if name == "" {
		return notify.Invalid("required", "lane", "says which one, such as push-bulk")
	}
	reason := oneLine(v.r.PostFormValue("reason"))
	v.client.Reason = reason
	if _, err := v.client.SetLane(v.ctx, name, to == "pause", reason); err != nil {
		return err
	}
	return v.goTo(Prefix + "lanes")
}

type schedulesBody struct {
	Query api.ScheduleQuery
	Page  api.ScheduledPage
	Next  string
}

func (p *Page) schedules(v *visit) error {
	q := v.r.URL.Query()
	b := schedulesBody{Query: api.ScheduleQuery{
		Status: q.Get("status"), User: strings.TrimSpace(q.Get("user")), Caller: strings.TrimSpace(q.Get("caller")), Cursor: q.Get("cursor"), Limit: rowsShown,
	}}
	var err error
	if b.Page, err = v.client.Schedules(v.ctx, b.Query); err != nil {
		return err
	}
	b.Next = nextPage("schedules", b.Page.Cursor, url.Values{"status": {b.Query.Status}, "user": {b.Query.User}, "caller": {b.Query.Caller}})
	return v.show("schedules", "Schedules", &b)
}

type campaignsBody struct {
	Caller string
	Page   api.CampaignPage
	Next   string
}

func (p *Page) campaigns(v *visit) error {
	q := v.r.URL.Query()
	b := campaignsBody{Caller: strings.TrimSpace(q.Get("caller"))}
	var err error
	if b.Page, err = v.client.Campaigns(v.ctx, b.Caller, api.Page{After: q.Get("cursor"), Limit: rowsShown}); err != nil {
		return err
	}
	b.Next = nextPage("campaigns", b.Page.Cursor, url.Values{"caller": {b.Caller}})
	return v.show("campaigns", "Campaigns", &b)
}

func (p *Page) callers(v *visit) error {
	callers, err := v.client.Callers(v.ctx)
	if err != nil {
		return err
	}
	return v.show("callers", "Callers", callers.Items)
}

// nextPage links to the page behind a cursor, with the filter; empty: there is none.
func nextPage(page, cursor string, filter url.Values) string {
	if cursor == "" {
		return ""
	}
	for name, values := range filter {
		if values[0] == "" {
			delete(filter, name)
		}
	}
	filter.Set("cursor", cursor)
	return with(Prefix+page, filter)
}
