package engine

// Cancel stops what has not started yet of a request or a campaign.
type Cancel struct {
	Scope   string // "ntf_<ULID>", "ntf_<ULID>-<index>" or "cmp_<ULID>"
	Caller  string // whose notifications they are
	By      string // who asked for it; empty in rows of earlier releases
	At      int64  // ms since 1970
	Version uint64
}
