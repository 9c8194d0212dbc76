package engine

// Profile is the preferences and addresses of a user. All callers share the users. The
// claim "users" of a token may restrict it to a namespace of users.
type Profile struct {
	User       string              `json:"user_id"`
	Addresses  map[string][]string `json:"addresses,omitempty"`   // by channel: push "apns:<token>" or "fcm:<token>", sms E.164, email
	OptOut     []string            `json:"opt_out,omitempty"`     // "push", "marketing", or "email/marketing"
	QuietHours *QuietHours         `json:"quiet_hours,omitempty"` // nil: none
	TimeZone   string              `json:"time_zone,omitempty"`   // IANA name; empty: UTC
	Suppressed map[string]string   `json:"suppressed,omitempty"`  // address -> reason; answers of providers set it
	Version    uint64              `json:"version"`               // of this row, from the change table; 0: never stored
}

// QuietHours is a daily period of local time in which only otp and alert are sent. The
// other categories wait for its end. If From is after To, the period crosses midnight.
type QuietHours struct {
	From string `json:"from"` // "22:00"
	To   string `json:"to"`   // "07:30"
}

// Change is one row of the versioned table of profile changes.
type Change struct {
	Version uint64
	Profile Profile // as of Version or later
}

// CodeRegressed is the code of an error of Changes: the store has lost versions that it had
// returned before.
const CodeRegressed = "store_regressed"

// ProfileParts is the number of parts in which profiles are kept. The part of a user is the
// hash that chooses the user's partition of the log (notify.Partition), modulo ProfileParts.
// So with 18 partitions the users of one partition are in 2 parts, and with 12 in 3. Only
// if the number of partitions has no factor in common with 36 must a process read all
// parts. The number is small because PostgreSQL has a table for each part, and every
// look for changes reads the end of each table.
const ProfileParts = 36
