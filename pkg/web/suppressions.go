package web

import (
	"net/url"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

type suppressionsBody struct {
	Filter api.SuppressionFilter
	Page   api.Suppressions
	Next   string
}

const suppressionsShown = 50

func (p *Page) suppressions(v *visit) error {
	q := v.r.URL.Query()
	b := suppressionsBody{Filter: api.SuppressionFilter{
		UserID: strings.TrimSpace(q.Get("user_id")), Channel: q.Get("channel"),
		Address: strings.TrimSpace(q.Get("address")), Code: strings.TrimSpace(q.Get("code")),
	}}
	var err error
	if b.Page, err = v.client.Suppressions(v.ctx, b.Filter, q.Get("cursor"), suppressionsShown); err != nil {
		return err
	}
	if b.Page.Cursor != "" {
		next := b.Filter.Query()
		next.Set("cursor", b.Page.Cursor)
		b.Next = with(Prefix+"suppressions", next)
	}
	return v.show("suppressions", "Suppressions", &b)
}

// liftSuppression takes an address off the list of one user, which the form says
// twice: by its button and by a box that must be ticked.
func (p *Page) liftSuppression(v *visit) error {
	in := api.SuppressionLift{Address: v.r.PostFormValue("address"), UserID: v.r.PostFormValue("user_id")}
	if v.r.PostFormValue("sure") != "yes" {
		return notify.Invalid("not_confirmed", "sure", "tick the box to send to the address again")
	}
	v.client.Reason = oneLine(v.r.PostFormValue("reason"))
	if _, err := v.client.LiftSuppression(v.ctx, in); err != nil {
		return err
	}
	return v.goTo(with(Prefix+"suppressions", url.Values{"user_id": {in.UserID}}))
}
