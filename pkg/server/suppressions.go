package server

import (
	"context"
	"net/http"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// Suppressions keeps the addresses that nothing is sent to.
type Suppressions interface {
	// Suppressions returns a page of the list, and the place to go on; nil at the end.
	Suppressions(ctx context.Context, q users.SuppressionQuery) (list []users.Suppression, next []byte, err error)
	// Lift takes an address off the user's profile, or off all that list it when user
	// is empty. It returns how many did, and whether another still does. It calls
	// notify.BeforeAct.
	Lift(ctx context.Context, user, address string) (lifted int, still bool, err error)
}

func (s *Server) listSuppressions(x *exchange) error {
	q := x.query()
	limit := q.pageSize(&s.cfg)
	f := api.SuppressionFilter{UserID: q.text("user_id"), Channel: q.text("channel"), Address: q.text("address"), Code: q.text("code")}
	bound := []string{"suppressions", f.UserID, f.Channel, f.Address, f.Code, x.id.Caller}
	after, err := q.place(s.cursors, bound)
	if err != nil {
		return err
	}
	ch, ok := notify.ParseChannel(f.Channel)
	if f.Channel != "" && !ok {
		return notify.Invalid("bad_channel", "channel", "no channel has this name")
	}
	found, next, err := s.deps.Suppressions.Suppressions(x.r.Context(), users.SuppressionQuery{
		User: f.UserID, Address: f.Address, Channel: ch, Code: f.Code, After: after, Limit: int(limit),
	})
	if err != nil {
		return err
	}
	page := api.Suppressions{Items: make([]api.Suppression, len(found)), Cursor: s.cursors.seal(next, bound...)}
	for i, e := range found {
		page.Items[i] = api.Suppression{UserID: e.User, Channel: e.Channel.String(), Address: e.Address, Code: e.Code}
	}
	return x.json(http.StatusOK, page)
}

func (s *Server) liftSuppression(x *exchange) error {
	in, err := bodyOf[api.SuppressionLift](x)
	if err != nil {
		return err
	}
	switch {
	case in.Address == "" || len(in.Address) > notify.MaxAddress:
		return notify.Invalid("bad_address", "address", "an address has 1 to 512 bytes")
	case in.UserID != "":
		if rule := notify.CheckUserID(in.UserID); rule != "" {
			return notify.Invalid("bad_user_id", "user_id", rule)
		}
	}
	n, still, err := s.deps.Suppressions.Lift(x.r.Context(), in.UserID, in.Address)
	if err != nil {
		return err
	}
	if n == 0 {
		return notify.NotFound("suppression")
	}
	return x.json(http.StatusOK, api.SuppressionLifted{Address: in.Address, Lifted: n, Still: still})
}
