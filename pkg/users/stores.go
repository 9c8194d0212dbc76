package users

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

// ProfileStore stores profiles, and the order in which they changed.
type ProfileStore interface {
	// Get returns the profile of a user. ok is false if the user has no profile.
	Get(ctx context.Context, user string) (p engine.Profile, ok bool, err error)
	// Put stores a profile if the stored version equals p.Version. Version 0 means that no profile
	// is stored. Put returns the new version, which is higher than every earlier version. If the
	// versions differ, Put returns notify.KindConflict and stores nothing.
	Put(ctx context.Context, p engine.Profile) (version uint64, err error)
	// PutMany stores profiles without comparing versions. It is for imports.
	PutMany(ctx context.Context, ps []engine.Profile) error
	// Changes returns at most max profiles that changed after the version since, in version order.
	// A user that changed twice may appear only once, at the later version. An engine may lose
	// versions that it has already returned, for example when a standby without these versions
	// becomes the primary. Changes then returns notify.KindUnavailable with engine.CodeRegressed
	// until Version is called, so that a follower reads everything again.
	Changes(ctx context.Context, since uint64, max int) ([]engine.Change, error)
	// Version returns the version of the latest change.
	Version(ctx context.Context) (uint64, error)
	// Scan calls fn with every profile whose user is in one of the parts (0 to
	// engine.ProfileParts-1). Nil parts mean all parts. fn gets each profile at the version that it
	// had when Scan was called, or a later version. An engine that does not separate parts may also
	// call fn with profiles of other parts. fn must keep no reference to the profile.
	Scan(ctx context.Context, parts []int, fn func(*engine.Profile) error) error
	// GetMany returns the stored profiles of users, in any order.
	GetMany(ctx context.Context, users []string) ([]engine.Profile, error)
	// Suppressing returns at most max profiles that suppress an address, ordered by user. It begins
	// with the first user after lastUser.
	Suppressing(ctx context.Context, lastUser string, max int) ([]engine.Profile, error)
}

// CancelStore stores cancellations in the order of their arrival. Workers read them in that order,
// like preferences.
type CancelStore interface {
	// Put stores a cancellation and returns its version, which is higher than every earlier
	// version. A second Put for the same scope keeps the first cancellation.
	Put(ctx context.Context, c engine.Cancel) (version uint64, err error)
	// Get returns the cancellation of a scope.
	Get(ctx context.Context, scope string) (c engine.Cancel, ok bool, err error)
	// Changes returns at most max cancellations with versions higher than since, in version order.
	Changes(ctx context.Context, since uint64, max int) ([]engine.Cancel, error)
}
