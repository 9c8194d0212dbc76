package engine

import "github.com/notifyd/notifyd/pkg/notify"

// Found is one receiver of an original chunk, and the place of that chunk in the log.
type Found struct {
	ID       notify.ID
	Pos      uint32          // position in the chunk
	Envelope notify.Envelope // of the whole chunk, with the column of receivers
	User     []byte
	Address  []byte
	Topic    string
	LogPart  int32
	Offset   int64
}

// HistoryCursor is the position from which a listing goes on. It is opaque to callers of the
// API. A cursor of one user's listing is valid only for that user.
type HistoryCursor []byte

// HistoryQuery selects notifications of one user, newest first.
type HistoryQuery struct {
	User   string
	Caller string // empty: of every caller
	Before HistoryCursor
	Limit  int // 1..1000
}

// ListQuery selects notifications of all users by the envelopes of their chunks.
type ListQuery struct {
	// The request was accepted in [Since, Until), ms since 1970; 0: no bound.
	Since, Until int64
	After        HistoryCursor
	// Want returns false for a chunk that holds no notification to list; nil: every chunk
	// may hold one. Want must not keep the envelope after it returns.
	Want func(*notify.Envelope) bool
}
