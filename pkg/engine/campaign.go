package engine

import "github.com/notifyd/notifyd/pkg/notify"

// Campaign joins the requests (parts) that together are one large fan-out.
type Campaign struct {
	ID       string // cmp_<ULID>
	Caller   string
	Created  int64 // ms since 1970
	Parts    int   // parts stored so far
	Accepted int64 // accepted receivers of the stored parts
	Rejected int64 // refused receivers of the stored parts
	// Bases are the bases of the parts, in the order in which the parts were stored. Only
	// Get fills Bases.
	Bases []notify.Base
}
