package engine

import (
	"context"
	"time"
)

// Filter remembers ids for a while, in little room. It can be sure of one thing
// only, that it does not know an id: what it may know has to be looked up.
// Ids are hashes, spread over all 64 bits.
type Filter interface {
	// Add remembers ids for at least the filter's window. After an error any of
	// them may be remembered; then call Incomplete before a Seen is believed.
	Add(ctx context.Context, ids []uint64) error
	// Seen reports of each id whether it may have been added. False means that
	// it was not, to the filter's knowledge since complete: an id that may have
	// been added before then must be looked up.
	Seen(ctx context.Context, ids []uint64) (maybe []bool, complete time.Time, err error)
	// Incomplete says that something was not added: complete is now at least.
	Incomplete(ctx context.Context) error
}
