package engine

import "context"

// Profile is what a user set: preferences and addresses. Users are shared by
// all callers; a token may be bound to a namespace of them (claim users).
type Profile struct {
	User       string              `json:"user_id"`
	Addresses  map[string][]string `json:"addresses,omitempty"`   // by channel: push "apns:<token>" or "fcm:<token>", sms E.164, email
	OptOut     []string            `json:"opt_out,omitempty"`     // "push", "marketing", or "email/marketing"
	QuietHours *QuietHours         `json:"quiet_hours,omitempty"` // nil: none
	TimeZone   string              `json:"time_zone,omitempty"`   // IANA name; empty: UTC
	Suppressed map[string]string   `json:"suppressed,omitempty"`  // address -> why; set by providers' answers
	Version    uint64              `json:"version"`               // of this row, from the change table; 0: never stored
}

// QuietHours is a daily span of local time in which only otp and alert are
// sent; the others wait for its end. From may lie after To: over midnight.
type QuietHours struct {
	From string `json:"from"` // "22:00"
	To   string `json:"to"`   // "07:30"
}

// Change is one line of the versioned change table.
type Change struct {
	Version uint64
	Profile Profile // as of that version or later
}

// CodeRegressed is the code of an error of Changes: versions that were shown are
// gone.
const CodeRegressed = "store_regressed"

// Prefs keeps profiles and the order in which they changed.
type Prefs interface {
	// Get returns the profile of a user; ok is false when there is none.
	Get(ctx context.Context, user string) (p Profile, ok bool, err error)
	// Put stores a profile if the stored version is p.Version (0: there is none),
	// and returns its version, higher than every version before it; else the result
	// is notify.KindConflict and nothing is stored.
	Put(ctx context.Context, p Profile) (version uint64, err error)
	// PutMany stores profiles unconditionally; for imports.
	PutMany(ctx context.Context, ps []Profile) error
	// Changes returns profiles changed after since, in version order, at most
	// max. A user changed twice may appear once, at its later version. An engine
	// that lost versions it has shown, as a standby that lacked them does when it
	// takes over, answers notify.KindUnavailable with CodeRegressed until Version
	// is called: whoever follows reads all anew.
	Changes(ctx context.Context, since uint64, max int) ([]Change, error)
	// Version returns the version of the latest change.
	Version(ctx context.Context) (uint64, error)
	// Scan calls fn with every profile; for a snapshot at start.
	Scan(ctx context.Context, fn func(*Profile) error) error
}
