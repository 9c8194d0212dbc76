package web

import (
	"net/url"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

type notificationsBody struct {
	Query        api.NotificationQuery
	Since, Until string // as they were written, so that links and commands say the same
	Page         api.UserHistory
	Next         string
}

const notificationsShown = 50

// fields of the filter, by the names of the query and of notifyctl's flags.
func (b *notificationsBody) fields() []struct {
	Name string
	To   *string
} {
	return []struct {
		Name string
		To   *string
	}{
		{"channel", &b.Query.Channel}, {"status", &b.Query.Status}, {"code", &b.Query.Code}, {"caller", &b.Query.Caller}, {"template", &b.Query.Template},
		{"campaign", &b.Query.Campaign}, {"since", &b.Since}, {"until", &b.Until},
	}
}

// States are what a notification's status can be.
func (b *notificationsBody) States() (names []string) {
	for s := notify.State(1); int(s) < notify.States; s++ {
		names = append(names, s.String())
	}
	return names
}

// Command that lists the same.
func (b *notificationsBody) Command() string {
	args := []string{"ls"}
	for _, x := range b.fields() {
		args = append(args, "--"+x.Name, *x.To)
	}
	return command(args...)
}

func (p *Page) notifications(v *visit) error {
	q, next := v.r.URL.Query(), url.Values{}
	b := notificationsBody{Query: api.NotificationQuery{Cursor: q.Get("cursor"), Limit: notificationsShown}}
	for _, x := range b.fields() {
		if *x.To = strings.TrimSpace(q.Get(x.Name)); *x.To != "" {
			next.Set(x.Name, *x.To)
		}
	}
	var err error
	if b.Query.Since, err = timeOf("since", b.Since, p.cfg.Now()); err != nil {
		return err
	}
	if b.Query.Until, err = timeOf("until", b.Until, p.cfg.Now()); err != nil {
		return err
	}
	if b.Page, err = v.client.Notifications(v.ctx, b.Query); err != nil {
		return err
	}
	if b.Page.Cursor != "" {
		next.Set("cursor", b.Page.Cursor)
		b.Next = with(Prefix+"notifications", next)
	}
	return v.show("notifications", "Notifications", &b)
}
