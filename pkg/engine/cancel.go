package engine

// Cancel stops the notifications of a scope, except those that have already started. The scope is a
// request, one notification of a request, or a campaign.
type Cancel struct {
	Scope   string // "ntf_<ULID>", "ntf_<ULID>-<index>" or "cmp_<ULID>"
	Caller  string // the owner of the notifications
	By      string // the subject that requested the cancel; empty in rows of earlier releases
	At      int64  // ms since 1970
	Version uint64
}
