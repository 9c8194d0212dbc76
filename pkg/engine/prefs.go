package engine

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

// ProfileParts is in how many parts profiles are kept: the part of a user is the hash
// that chooses the user's partition of the log (notify.Partition) modulo ProfileParts. So
// the users of a partition of 18 are in 2 parts and those of one of 12 in 3, whichever
// number of partitions the log has: one that has no factor in common with 36 alone
// makes a process read all parts. PostgreSQL has a table for each part, and every look
// for changes reads the end of each; so there are few.
const ProfileParts = 36
