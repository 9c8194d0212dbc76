package engine

// Profile contains the preferences and addresses of a user. All callers share the same
// users. The claim "users" of a token may restrict that token to a namespace of users.
type Profile struct {
	User       string              `json:"user_id"`
	Addresses  map[string][]string `json:"addresses,omitempty"`   // by channel: push "apns:<token>" or "fcm:<token>", sms E.164, email
	OptOut     []string            `json:"opt_out,omitempty"`     // "push", "marketing", or "email/marketing"
	QuietHours *QuietHours         `json:"quiet_hours,omitempty"` // nil: none
	TimeZone   string              `json:"time_zone,omitempty"`   // IANA name; empty: UTC
	Suppressed map[string]string   `json:"suppressed,omitempty"`  // address -> reason; set from answers of providers
	Version    uint64              `json:"version"`               // from the change table; 0: the profile was never stored
}

// QuietHours is a daily period of local time in which only notifications of the categories
// otp and alert are sent. The other categories wait until the period ends. If From is after
// To, the period crosses midnight.
type QuietHours struct {
	From string `json:"from"` // "22:00"
	To   string `json:"to"`   // "07:30"
}

// Change is one row of the versioned table of profile changes.
type Change struct {
	Version uint64
	Profile Profile // the profile at Version or at a later version
}

// CodeRegressed is the code of an error that the method Changes of users.ProfileStore returns. It
// means that the store has lost versions that Changes had returned before.
const CodeRegressed = "store_regressed"

// ProfileParts is the number of parts into which the store divides profiles. The part of a
// user is a hash modulo ProfileParts. The same hash chooses the user's partition of the log
// (notify.Partition). So with 18 partitions the users of one partition are in 2 parts, and
// with 12 partitions they are in 3 parts. If the number of partitions has no factor in
// common with 36, a process must read all parts. The number of parts is small because
// PostgreSQL has a table for each part, and every check for changes reads the end of each
// table.
const ProfileParts = 36
