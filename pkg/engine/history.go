package engine

import "github.com/notifyd/notifyd/pkg/notify"

// Found is one receiver of an original chunk, and the position of that chunk in the log.
type Found struct {
	ID       notify.ID
	Pos      uint32          // position in the chunk
	Envelope notify.Envelope // the envelope of the whole chunk, with the column of receivers
	User     []byte
	Address  []byte
	Topic    string
	LogPart  int32
	Offset   int64
}

// HistoryCursor is the position from which a listing continues. Callers of the API must not
// interpret its bytes. A cursor from a listing of one user is valid only for that user.
type HistoryCursor []byte

// HistoryQuery selects notifications of one user, newest first.
type HistoryQuery struct {
	User   string
	Caller string // empty: notifications of every caller
	Before HistoryCursor
	Limit  int // 1..1000
}

// ListQuery selects notifications of all users, chunk by chunk.
type ListQuery struct {
	// Since and Until select requests that were accepted in [Since, Until), ms since 1970.
	// 0 means no bound.
	Since, Until int64
	After        HistoryCursor
	// Want returns true if the listing may need a notification of the chunk with this envelope. If
	// Want is nil, the listing reads every chunk. Want must not keep the envelope after it
	// returns.
	Want func(*notify.Envelope) bool
}
