package server

import (
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// selection is what the query of a list selects, and whose list it is.
type selection struct {
	user, caller, template, campaign, code string // empty: all
	channel                                notify.Channel
	status                                 notify.State
	since, until                           int64 // when it was accepted: [since, until); 0: open
	limit                                  int
	after                                  []byte

	bound  []string // what the cursor is bound to
	page   api.UserHistory
	known  known // the receiver that was looked at last
	loaded bool  // known holds a receiver, with all rows of its chunk
}

// readSelection reads the query of a list of this user's, or every user's when empty.
func readSelection(x *exchange, user string) (*selection, error) {
	q := x.query
	sel := &selection{user: user, caller: x.listedCaller(), limit: x.pageSize()}
	channel, status := q.text("channel"), q.text("status")
	sel.template, sel.campaign, sel.code = q.text("template"), q.text("campaign"), q.text("code")
	sel.since, sel.until = q.moment("since"), q.moment("until")
	// A cursor is a place: with it the list may be narrowed, and a distance back that
	// is another time with each page stays good.
	sel.bound = []string{"user", user, sel.caller, x.id.Caller, x.id.Users}
	var err error
	if sel.after, err = x.place(sel.bound); err != nil {
		return nil, err
	}
	var ok bool
	if sel.channel, ok = notify.ParseChannel(channel); channel != "" && !ok {
		return nil, notify.Invalid("unknown_channel", "channel", "push, sms or email")
	}
	if sel.status, ok = notify.ParseState(status); status != "" && !ok {
		return nil, notify.Invalid("bad_state", "status", "no state is called so, e.g. DELIVERED or FAILED")
	}
	if sel.campaign != "" && !campaignID(sel.campaign) {
		return nil, notify.Invalid("bad_campaign", "campaign", "must be cmp_ and a ULID")
	}
	sel.page.Items = []api.Status{}
	return sel, nil
}

// chunk reports whether receivers of a chunk may be selected.
func (sel *selection) chunk(e *notify.Envelope) bool {
	return (sel.caller == "" || e.Caller == sel.caller) && (sel.template == "" || e.Content.Template == sel.template) &&
		(sel.campaign == "" || e.Campaign == sel.campaign) && (sel.channel == 0 || e.Channel == sel.channel) &&
		e.Accepted >= sel.since && (sel.until == 0 || e.Accepted < sel.until)
}

// take adds a receiver of a selected chunk to the page, unless its status or its code is
// another.
// It returns false, and adds nothing, when the page is full.
func (sel *selection) take(x *exchange, f *engine.Found) (bool, error) {
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
	sel.page.Cursor = x.srv.cursors.seal(next, sel.bound...)
	return sel.page, nil
}

// userHistory lists what a user was sent, newest first: the caller's own, and
// everybody's for an operator. What is selected is selected of each page.
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
		if !sel.chunk(&found[i].Envelope) {
			continue
		}
		if _, err := sel.take(x, &found[i]); err != nil {
			return page, err
		}
	}
	if n := len(found); n > 0 && found[n-1].Envelope.NotBefore == 0 && found[n-1].Envelope.Accepted < sel.since {
		next = nil // it is as old as where it stands in the list: what follows is older
	}
	return sel.answer(x, next)
}

// listNotifications lists what every user was sent, newest request first: the
// caller's own, and everybody's for an operator.
func listNotifications(x *exchange) (page api.UserHistory, err error) {
	sel, err := readSelection(x, "")
	if err != nil {
		return page, err
	}
	if x.srv.deps.List == nil {
		return page, notify.Invalid("list_needs_user", "", "this server's history is kept by user: ask for /v1/users/{id}/notifications")
	}
	next, err := x.srv.deps.List.List(x.r.Context(), engine.ListQuery{Since: sel.since, Until: sel.until, After: sel.after, Want: sel.chunk},
		func(f *engine.Found) (bool, error) { return sel.take(x, f) })
	if err != nil {
		return page, err
	}
	return sel.answer(x, next)
}
