package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Campaign joins the parts of one large fan-out.
type Campaign struct {
	ID       string // cmp_<ULID>
	Caller   string
	Created  int64 // ms since 1970
	Parts    int   // parts stored so far
	Accepted int64 // receivers of those parts
	Rejected int64
	Bases    []notify.Base // of the parts, in the order they came; Get only
}

// Campaigns keeps which requests belong to a campaign.
type Campaigns interface {
	// AddPart records that part of the campaign was accepted as base. The same
	// (campaign, part) again changes nothing. A campaign of another caller is
	// notify.KindNotFound.
	AddPart(ctx context.Context, campaign, caller string, part uint32, base notify.Base, accepted, rejected int64, at int64) error
	// Get returns a campaign with its bases.
	Get(ctx context.Context, campaign string) (c Campaign, ok bool, err error)
	// List returns campaigns of a caller (empty: of all), the newest first and of one
	// time the greatest id first, at most max of them, without their bases. It begins
	// behind after, of which only Created and ID count; an empty ID means at the newest.
	List(ctx context.Context, caller string, after Campaign, max int) ([]Campaign, error)
}
