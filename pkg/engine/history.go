package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

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

// History answers who got what. It reads what the log and the sealed segments
// hold; State is not its business.
type History interface {
	// Find returns the receiver with this id: notify.KindNotFound when there
	// is none, notify.KindGone when its retention has passed. An id answered
	// 201 before the call is found.
	Find(ctx context.Context, id notify.ID) (Found, error)
	// Each calls fn with every receiver of a request, in index order within
	// each chunk; it stops at fn's error and returns it.
	Each(ctx context.Context, base notify.Base, fn func(*Found) error) error
	// User lists notifications of a user, newest first, and where to go on;
	// a nil cursor means there is no more.
	User(ctx context.Context, q HistoryQuery) ([]Found, HistoryCursor, error)
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
