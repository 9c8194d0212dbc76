package engine

import "context"

// Aged removes what is past its time from Status, Cancels and Campaigns of an
// engine whose rows have no time to live. Times are ms since 1970, and belong to
// the caller: it must not name one that somebody still asks for. Each method
// returns how many it removed, also with an error; what is left goes with the next
// call.
type Aged interface {
	// PurgeOutcomes removes each row that was updated last before closed, if it is
	// done, and before open, if it is not: what is not done is a claim, and its
	// record may still be in the log.
	PurgeOutcomes(ctx context.Context, closed, open int64) (removed int, err error)
	// PurgeCancels removes cancellations made before a time. The newest of all
	// stays, so that versions never begin again.
	PurgeCancels(ctx context.Context, before int64) (removed int, err error)
	// PurgeCampaigns removes campaigns with their parts if they were created before a
	// time and so was their newest part.
	PurgeCampaigns(ctx context.Context, before int64) (removed int, err error)
}
