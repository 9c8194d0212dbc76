package engine

import "github.com/notifyd/notifyd/pkg/notify"

// Found is one receiver of one original chunk.
type Found struct {
	ID       notify.ID
	Pos      uint32          // position in the chunk
	Envelope notify.Envelope // of the chunk, its column included
	User     []byte
	Address  []byte
	Topic    string
	LogPart  int32
	Offset   int64
}

// HistoryCursor continues a listing of one user. It is opaque to callers of
// the API and bound to the user.
type HistoryCursor []byte

// HistoryQuery selects notifications of one user, newest first.
type HistoryQuery struct {
	User   string
	Caller string // empty: of every caller
	Before HistoryCursor
	Limit  int // 1..1000
}

// ListQuery selects notifications of every user, by what their chunks say.
type ListQuery struct {
	// When the request was accepted: in [Since, Until), ms since 1970; 0: open.
	Since, Until int64
	After        HistoryCursor
	// Want reports whether a chunk may hold what is listed; nil: each may. The
	// chunk is Want's until it returns.
	Want func(*notify.Envelope) bool
}
