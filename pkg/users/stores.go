package users

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

// ProfileStore keeps profiles and the order in which they changed.
type ProfileStore interface {
	// Get returns the profile of a user; ok is false when there is none.
	Get(ctx context.Context, user string) (p engine.Profile, ok bool, err error)
	// Put stores a profile if the stored version is p.Version (0: there is none),
	// and returns its version, higher than every version before it; else the result
	// is notify.KindConflict and nothing is stored.
	Put(ctx context.Context, p engine.Profile) (version uint64, err error)
	// PutMany stores profiles unconditionally; for imports.
	PutMany(ctx context.Context, ps []engine.Profile) error
	// Changes returns profiles changed after since, in version order, at most
	// max. A user changed twice may appear once, at its later version. An engine
	// that lost versions it has shown, as a standby that lacked them does when it
	// takes over, answers notify.KindUnavailable with engine.CodeRegressed until Version
	// is called: a follower reads all anew.
	Changes(ctx context.Context, since uint64, max int) ([]engine.Change, error)
	// Version returns the version of the latest change.
	Version(ctx context.Context) (uint64, error)
	// Scan calls fn with every profile whose user is in one of the parts (0 to
	// engine.ProfileParts-1), each at its latest version when Scan was called or later.
	// Nil parts are all. An engine that does not keep parts apart may call fn with the
	// profiles of other parts, too. fn keeps nothing of what it is given.
	Scan(ctx context.Context, parts []int, fn func(*engine.Profile) error) error
	// GetMany returns the profiles of those of the users that have one, in any order.
	GetMany(ctx context.Context, users []string) ([]engine.Profile, error)
	// Suppressing returns profiles that suppress an address, by user, from the first
	// user after the given one on, at most max.
	Suppressing(ctx context.Context, after string, max int) ([]engine.Profile, error)
}

// CancelStore keeps cancellations in the order they came, so that workers follow
// them as they follow preferences.
type CancelStore interface {
	// Put stores a cancellation and returns its version, higher than every one
	// before. The same scope again keeps the first.
	Put(ctx context.Context, c engine.Cancel) (version uint64, err error)
	// Get returns the cancellation of a scope.
	Get(ctx context.Context, scope string) (c engine.Cancel, ok bool, err error)
	// Changes returns cancellations after since, in version order, at most max.
	Changes(ctx context.Context, since uint64, max int) ([]engine.Cancel, error)
}
