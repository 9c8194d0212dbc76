package engine

import "github.com/notifyd/notifyd/pkg/notify"

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
