package engine

import "context"

// Cancel stops what has not started yet of a request or a campaign.
type Cancel struct {
	Scope   string // "ntf_<ULID>", "ntf_<ULID>-<index>" or "cmp_<ULID>"
	Caller  string // whose notifications they are
	By      string // who asked for it; empty in rows of earlier releases
	At      int64  // ms since 1970
	Version uint64
}

// Cancels keeps cancellations in the order they came, so that workers follow
// them as they follow preferences.
type Cancels interface {
	// Put stores a cancellation and returns its version, higher than every one
	// before. The same scope again keeps the first.
	Put(ctx context.Context, c Cancel) (version uint64, err error)
	// Get returns the cancellation of a scope.
	Get(ctx context.Context, scope string) (c Cancel, ok bool, err error)
	// Changes returns cancellations after since, in version order, at most max.
	Changes(ctx context.Context, since uint64, max int) ([]Cancel, error)
}
