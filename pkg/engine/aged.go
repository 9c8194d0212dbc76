package engine

import "context"

// Aged removes old rows from Status, Cancels and Campaigns of an engine whose rows
// have no time to live. Times are ms since 1970. The caller must not pass a time whose
// rows are still read. Each method returns how many rows it removed, also with an
// error; the next call removes the rest.
type Aged interface {
	// PurgeOutcomes removes done rows that were last updated before closed, and other
	// rows that were last updated before open. A row that is not done is a claim, and
	// its record may still be in the log.
	PurgeOutcomes(ctx context.Context, closed, open int64) (removed int, err error)
	// PurgeCancels removes cancellations made before a time. The newest of all
	// stays, so that versions never begin again.
	PurgeCancels(ctx context.Context, before int64) (removed int, err error)
	// PurgeCampaigns removes campaigns with their parts if they were created before a
	// time and so was their newest part.
	PurgeCampaigns(ctx context.Context, before int64) (removed int, err error)
}
