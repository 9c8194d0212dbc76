package server

import (
	"strings"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// userID returns the user id in the path, if the token may use it.
func userID(x *exchange) (string, error) {
	id := x.r.PathValue("id")
	if rule := notify.CheckUserID(id); rule != "" {
		return "", notify.Invalid("bad_user_id", "id", rule)
	}
	if !strings.HasPrefix(id, x.id.Users) {
		return "", &notify.Error{Kind: notify.KindForbidden, Code: "user_forbidden", Field: "id", Msg: "the token is restricted to other users"}
	}
	return id, nil
}

func getUser(x *exchange) (u api.User, err error) {
	if u.UserID, err = userID(x); err != nil {
		return u, err
	}
	p, err := x.srv.deps.Users.Get(x.r.Context(), u.UserID)
	u.Addresses, u.OptOut, u.TimeZone, u.Suppressed, u.Version = p.Addresses, p.OptOut, p.TimeZone, p.Suppressed, p.Version
	u.QuietHours = (*api.QuietHours)(p.QuietHours)
	return u, err
}

// putUser stores a user's profile. It ignores the field "suppressed" of the body, because only
// providers report dead addresses.
func putUser(x *exchange, u api.User) (api.UserVersion, error) {
	id, err := userID(x)
	if err == nil && u.UserID != "" && u.UserID != id {
		err = notify.Invalid("wrong_user", "user_id", "differs from the id in the path")
	}
	if err != nil {
		return api.UserVersion{}, err
	}
	p, err := x.srv.deps.Users.Put(x.r.Context(), engine.Profile{
		User: id, Addresses: u.Addresses, OptOut: u.OptOut, TimeZone: u.TimeZone, Version: u.Version, QuietHours: (*engine.QuietHours)(u.QuietHours),
	})
	return api.UserVersion{UserID: id, Version: p.Version}, err
}

// selection contains the filters of a list's query, and the page that is being filled.
type selection struct {
	user, caller, template, campaign, code string // empty: all
	channel                                notify.Channel
	status                                 notify.State
	since, until                           int64 // accepted in [since, until), ms since 1970; 0: no limit
	limit                                  int
	after                                  []byte

	bound  []string // strings to which the cursor is bound
	page   api.UserHistory
	known  knownNotification // the last receiver that was checked
	loaded bool              // true: the field known contains a receiver and all rows of its chunk
}

// readSelection reads the query of a list for this user. An empty user means all users.
func readSelection(x *exchange, user string) (*selection, error) {
	q := x.query
	sel := &selection{user: user, caller: x.listedCaller(), limit: x.pageSize()}
	channel, status := q.text("channel"), q.text("status")
	sel.template, sel.campaign, sel.code = q.text("template"), q.text("campaign"), q.text("code")
	sel.since, sel.until = q.moment("since"), q.moment("until")
	// The cursor is not bound to the filters, so they may change between pages. For example, a
	// relative --since is a different time for each page.
	sel.bound = []string{"user", user, sel.caller, x.id.Caller, x.id.Users}
	var err error
	if sel.after, err = x.cursorPosition(sel.bound); err != nil {
		return nil, err
	}
	var ok bool
	if sel.channel, ok = notify.ParseChannel(channel); channel != "" && !ok {
		return nil, notify.Invalid("unknown_channel", "channel", "must be push, sms or email")
	}
	if sel.status, ok = notify.ParseState(status); status != "" && !ok {
		return nil, notify.Invalid("bad_state", "status", "is not the name of a state, such as DELIVERED or FAILED")
	}
	if sel.campaign != "" && !campaignID(sel.campaign) {
		return nil, notify.Invalid("bad_campaign", "campaign", "must be cmp_ followed by a ULID")
	}
	sel.page.Items = []api.Status{}
	return sel, nil
}

// mayMatch returns true if the chunk e matches all filters that do not depend on the single
// receiver.
func (sel *selection) mayMatch(e *notify.Envelope) bool {
	return (sel.caller == "" || e.Caller == sel.caller) && (sel.template == "" || e.Content.Template == sel.template) &&
		(sel.campaign == "" || e.Campaign == sel.campaign) && (sel.channel == 0 || e.Channel == sel.channel) &&
		e.Accepted >= sel.since && (sel.until == 0 || e.Accepted < sel.until)
}

// addIfMatches adds a receiver of a matching chunk to the page if its status and error code match.
// It returns false only if the page is already full; then it adds nothing.
func (sel *selection) addIfMatches(x *exchange, f *engine.Found) (bool, error) {
	if !strings.HasPrefix(string(f.User), x.id.Users) {
		return true, nil
	}
	k := &sel.known
	same := sel.loaded && k.found.Envelope.Chunk == f.Envelope.Chunk
	if k.found = *f; same {
		k.fold()
	} else if err := k.load(x.r.Context(), x.srv.deps.Status); err != nil {
		return false, err
	}
	sel.loaded = true
	if sel.status != 0 && k.out.State != sel.status || sel.code != "" && k.out.Code != sel.code {
		return true, nil
	}
	if len(sel.page.Items) == sel.limit {
		return false, nil
	}
	sel.page.Items = append(sel.page.Items, statusOf(k))
	return true, nil
}

func (sel *selection) answer(x *exchange, next engine.HistoryCursor) (api.UserHistory, error) {
	sel.page.Cursor = x.srv.cursors.sealCursor(next, sel.bound...)
	if x.srv.deps.OmitsFanouts {
		sel.page.Omits = []string{api.OmitsFanouts}
	}
	return sel.page, nil
}

// userHistory lists the notifications to a user, newest first. A caller sees the notifications that
// it sent. An operator sees the notifications of all callers. The filters are applied to each page,
// so a page may be short.
func userHistory(x *exchange) (page api.UserHistory, err error) {
	user, err := userID(x)
	if err != nil {
		return page, err
	}
	sel, err := readSelection(x, user)
	if err != nil {
		return page, err
	}
	found, next, err := x.srv.deps.History.User(x.r.Context(), engine.HistoryQuery{User: user, Caller: sel.caller, Before: sel.after, Limit: sel.limit})
	if err != nil {
		return page, err
	}
	for i := range found {
		if !sel.mayMatch(&found[i].Envelope) {
			continue
		}
		if _, err := sel.addIfMatches(x, &found[i]); err != nil {
			return page, err
		}
	}
	if n := len(found); n > 0 && found[n-1].Envelope.NotBefore == 0 && found[n-1].Envelope.Accepted < sel.since {
		next = nil // the list is ordered by time, so the rest is older than since
	}
	return sel.answer(x, next)
}

// listNotifications lists the notifications to all users, newest request first. A caller sees the
// notifications that it sent. An operator sees the notifications of all callers.
func listNotifications(x *exchange) (page api.UserHistory, err error) {
	sel, err := readSelection(x, "")
	if err != nil {
		return page, err
	}
	if x.srv.deps.List == nil {
		return page, notify.Invalid("list_needs_user", "", "this server keeps its history by user; use /v1/users/{id}/notifications")
	}
	next, err := x.srv.deps.List.List(x.r.Context(), engine.ListQuery{Since: sel.since, Until: sel.until, After: sel.after, Want: sel.mayMatch},
		func(f *engine.Found) (bool, error) { return sel.addIfMatches(x, f) })
	if err != nil {
		return page, err
	}
	return sel.answer(x, next)
}

// getContent returns the content and the addresses of a notification. It is for the caller that
// sent the notification, and for operators, whose reads are audited. The scope "observe" is not
// enough, because the content may contain a sign-in code.
func getContent(x *exchange) (c api.NotificationContent, err error) {
	address := x.query.text("address")
	if address != "" && address != api.FullAddress {
		return c, notify.Invalid("bad_address", "address", `must be "full", or omitted for masked addresses`)
	}
	k, fanout, err := findNotification(x, x.r.PathValue("id"))
	if err != nil {
		return c, err
	}
	owner := k.found.Envelope.Caller
	switch {
	case owner != x.id.Caller && !x.id.Has(api.ScopeOperate):
		return c, &notify.Error{Kind: notify.KindForbidden, Code: "scope_missing", Msg: "the content of another caller's notification needs the scope " + api.ScopeOperate}
	case fanout:
		return c, indexMissing(&k)
	case k.scheduled != nil:
		return c, &notify.Error{Kind: notify.KindConflict, Code: "not_due", Msg: "the notification is scheduled, or was cancelled before its time; its content can be read once it is due"}
	case !strings.HasPrefix(string(k.found.User), x.id.Users):
		return c, errNoNotification()
	}
	x.auditIfForeign(owner)
	if c, err = contentOf(x, &k.found); err != nil {
		return c, err
	}
	for i, a := range c.Addresses {
		if address != api.FullAddress {
			c.Addresses[i] = maskAddress(a)
		}
	}
	return c, x.recordAct()
}

// contentOf returns the content that was sent to a receiver. If the request contained no address,
// it returns the addresses that the profile has now.
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

// maskAddress masks an address. Of a mail address it keeps the domain. Of any other address it
// keeps the last four characters, or fewer if the address is short.
func maskAddress(a string) string {
	local, domain, mail := strings.Cut(a, "@")
	if mail {
		return "***@" + domain
	}
	n := utf8.RuneCountInString(local)
	r := []rune(local)
	return "***" + string(r[n-min(4, n/3):])
}
