package server

import (
	"strings"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// getContent answers with what a notification says, and where it was sent: to the
// caller that sent it and to operators, whose look is recorded. Who only observes
// sees none of it: it may hold a code that signs in.
func getContent(x *exchange) (c api.NotificationContent, err error) {
	address := x.query.text("address")
	if address != "" && address != api.FullAddress {
		return c, notify.Invalid("bad_address", "address", "is full, or left out: then addresses are masked")
	}
	k, fanout, err := findNotification(x, x.r.PathValue("id"))
	if err != nil {
		return c, err
	}
	owner := k.found.Envelope.Caller
	switch {
	case owner != x.id.Caller && !x.id.Has(api.ScopeOperate):
		return c, &notify.Error{Kind: notify.KindForbidden, Code: "scope_missing", Msg: "the content of another caller's needs the scope " + api.ScopeOperate}
	case fanout:
		return c, indexMissing(&k)
	case k.waits != nil:
		return c, &notify.Error{Kind: notify.KindConflict, Code: "not_due", Msg: "it waits for its time, or was cancelled before: its content can be read once it is due"}
	case !strings.HasPrefix(string(k.found.User), x.id.Users):
		return c, errNoNotification()
	}
	x.of(owner)
	if c, err = contentOf(x, &k.found); err != nil {
		return c, err
	}
	for i, a := range c.Addresses {
		if address != api.FullAddress {
			c.Addresses[i] = maskAddress(a)
		}
	}
	return c, x.record()
}

// contentOf is what a receiver was sent. Where the request named no address, the
// addresses are those that the profile has now.
func contentOf(x *exchange, f *engine.Found) (api.NotificationContent, error) {
	e, c := &f.Envelope, &f.Envelope.Content
	out := api.NotificationContent{
		NotificationID: f.ID.String(), Channel: e.Channel.String(), Caller: e.Caller, UserID: string(f.User), Addresses: []string{},
		Content: api.Content{
			Template: c.Template, Title: c.Title, Body: c.Body, HTML: c.HTML, Variables: c.Variables, Data: c.Data, CollapseKey: c.CollapseKey, From: c.From,
		},
	}
	rd, r := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	if rd.Skip(f.Pos); rd.Next(&r) {
		out.Variables = r.Variables
	}
	if f.Address != nil {
		out.Addresses = append(out.Addresses, string(f.Address))
		return out, nil
	}
	out.FromProfile = true
	p, err := x.srv.deps.Users.Get(x.r.Context(), out.UserID)
	if err != nil && notify.KindOf(err) != notify.KindNotFound {
		return out, err
	}
	out.Addresses = append(out.Addresses, p.Addresses[out.Channel]...)
	return out, nil
}

// maskAddress leaves the last four characters of an address, or fewer where it is
// short, and the domain of a mail.
func maskAddress(a string) string {
	local, domain, mail := strings.Cut(a, "@")
	if mail {
		return "***@" + domain
	}
	n := utf8.RuneCountInString(local)
	r := []rune(local)
	return "***" + string(r[n-min(4, n/3):])
}
