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

// setLane pauses or resumes a lane.
func (p *Page) setLane(v *visit) error {
	name, to := v.r.PostFormValue("lane"), v.r.PostFormValue("change")
	if to != "pause" && to != "resume" {
		return notify.Invalid("bad_value", "change", `must be "pause" or "resume"`)
	}
	if name == "" {
		return notify.Invalid("required", "lane", "is missing; it must be a lane such as push-bulk")
	}
	reason := headerText(v.r.PostFormValue("reason"))
	v.client.Reason = reason
	if _, err := v.client.SetLane(v.ctx, name, to == "pause", reason); err != nil {
		return err
	}
	return v.goTo(Prefix + "lanes")
}

// filterWord is one condition of a page's filter. Name is the name of the condition in the query
// and in notifyctl's flags.
type filterWord struct {
	Name string
	To   *string
}

// readListPage reads the conditions of a filter from the query, and requests the page at the
// query's cursor. The result next is the link to the next page, or "" if there is none.
func readListPage[T any](v *visit, path string, words []filterWord, ask func(cursor string) (api.List[T], error)) (page api.List[T], next string, err error) {
	q, link := v.r.URL.Query(), url.Values{}
	for _, w := range words {
		if *w.To = strings.TrimSpace(q.Get(w.Name)); *w.To != "" {
			link.Set(w.Name, *w.To)
		}
	}
	if page, err = ask(q.Get("cursor")); err == nil && page.Cursor != "" {
		link.Set("cursor", page.Cursor)
		next = withQuery(Prefix+path, link)
	}
	return page, next, err
}

type schedulesBody struct {
	Query api.ScheduleQuery
	Page  api.ScheduledPage
	Next  string
}

func (p *Page) schedules(v *visit) (err error) {
	b := schedulesBody{Query: api.ScheduleQuery{Limit: rowsShown}}
	f := &b.Query
	words := []filterWord{{"status", &f.Status}, {"user", &f.User}, {"caller", &f.Caller}}
	b.Page, b.Next, err = readListPage(v, "schedules", words, func(cursor string) (api.ScheduledPage, error) {
		f.Cursor = cursor
		return v.client.Schedules(v.ctx, *f)
	})
	if err != nil {
		return err
	}
	return v.show("schedules", "Schedules", &b)
}

type campaignsBody struct {
	Caller string
	Page   api.CampaignPage
	Next   string
}

func (p *Page) campaigns(v *visit) (err error) {
	var b campaignsBody
	b.Page, b.Next, err = readListPage(v, "campaigns", []filterWord{{"caller", &b.Caller}}, func(cursor string) (api.CampaignPage, error) {
		return v.client.Campaigns(v.ctx, b.Caller, api.Page{After: cursor, Limit: rowsShown})
	})
	if err != nil {
		return err
	}
	return v.show("campaigns", "Campaigns", &b)
}

func (p *Page) callers(v *visit) error {
	callers, err := v.client.Callers(v.ctx)
	if err != nil {
		return err
	}
	return v.show("callers", "Callers", callers.Items)
}

type suppressionsBody struct {
	Filter api.SuppressionFilter
	Page   api.Suppressions
	Next   string
}

func (p *Page) suppressions(v *visit) (err error) {
	var b suppressionsBody
	f := &b.Filter
	words := []filterWord{{"user_id", &f.UserID}, {"channel", &f.Channel}, {"address", &f.Address}, {"code", &f.Code}}
	b.Page, b.Next, err = readListPage(v, "suppressions", words, func(cursor string) (api.Suppressions, error) {
		return v.client.Suppressions(v.ctx, *f, cursor, rowsShown)
	})
	if err != nil {
		return err
	}
	return v.show("suppressions", "Suppressions", &b)
}

// liftSuppression lifts the suppression of an address for one user. The visitor confirms it in the
// form with a button and a box that must be ticked.
func (p *Page) liftSuppression(v *visit) error {
	in := api.SuppressionLift{Address: v.r.PostFormValue("address"), UserID: v.r.PostFormValue("user_id")}
	if v.r.PostFormValue("sure") != "yes" {
		return notify.Invalid("not_confirmed", "sure", "tick the box to send to the address again")
	}
	v.client.Reason = headerText(v.r.PostFormValue("reason"))
	if _, err := v.client.LiftSuppression(v.ctx, in); err != nil {
		return err
	}
	return v.goTo(withQuery(Prefix+"suppressions", url.Values{"user_id": {in.UserID}}))
}

type userBody struct {
	User string
	Page api.UserHistory
	Next string
}

func (p *Page) user(v *visit) (err error) {
	b := userBody{User: v.r.PathValue("id")}
	b.Page, b.Next, err = readListPage(v, "users/"+url.PathEscape(b.User), nil, func(cursor string) (api.UserHistory, error) {
		return v.client.UserNotifications(v.ctx, b.User, cursor, rowsShown)
	})
	if err != nil {
		return err
	}
	return v.show("user", "Notifications of "+b.User, &b)
}

type notificationsBody struct {
	Query        api.NotificationQuery
	Since, Until string // text from the query, so that links and commands show the same text
	Page         api.UserHistory
	Next         string
}

// words returns the conditions of the filter.
func (b *notificationsBody) words() []filterWord {
	return []filterWord{
		{"channel", &b.Query.Channel}, {"status", &b.Query.Status}, {"code", &b.Query.Code}, {"caller", &b.Query.Caller}, {"template", &b.Query.Template},
		{"campaign", &b.Query.Campaign}, {"since", &b.Since}, {"until", &b.Until},
	}
}

// States returns the states of a notification.
func (b *notificationsBody) States() (names []string) {
	for s := notify.State(1); int(s) < notify.States; s++ {
		names = append(names, s.String())
	}
	return names
}

// Command returns the notifyctl command that lists the same notifications.
func (b *notificationsBody) Command() string {
	args := []string{"ls"}
	for _, x := range b.words() {
		args = append(args, "--"+x.Name, *x.To)
	}
	return command(args...)
}

func (p *Page) notifications(v *visit) (err error) {
	b := notificationsBody{Query: api.NotificationQuery{Limit: rowsShown}}
	f := &b.Query
	b.Page, b.Next, err = readListPage(v, "notifications", b.words(), func(cursor string) (page api.UserHistory, err error) {
		f.Cursor = cursor
		if f.Since, err = parseTime("since", b.Since, p.cfg.Now()); err != nil {
			return page, err
		}
		if f.Until, err = parseTime("until", b.Until, p.cfg.Now()); err != nil {
			return page, err
		}
		return v.client.Notifications(v.ctx, *f)
	})
	if err != nil {
		return err
	}
	return v.show("notifications", "Notifications", &b)
}
