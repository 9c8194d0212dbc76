package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Status stores the outcome rows of notifications, by chunk.
type Status interface {
	// Put stores rows. Of several writes of a key, the one with the greatest Row.Stamp
	// wins, in whatever order they arrive. (Tenure says when an engine may show an older
	// row in between.) Of writes without stamps, the last one wins. The rows of one call
	// that belong to one request (Base) are stored, and become visible, all or none. A
	// call that is refused stores no row. In an engine of many machines an error may
	// leave the rows of some requests of the call stored.
	Put(ctx context.Context, rows []notify.Row) error
	// TakeOver begins a tenure of a partition of a topic. Its stamps are greater than those
	// of all earlier tenures. It does not stop an earlier owner from writing. The caller
	// must use the tenure only if it still owns the partition after TakeOver returns.
	TakeOver(ctx context.Context, topic string, partition int32) (Tenure, error)
	// Resume returns the rows of keys as Get does, for the owner of t to act on. A row that
	// it returns as Done is final: rows of earlier tenures that arrive later do not replace
	// it. Any other row may still be replaced by one of an earlier tenure until the owner
	// has written that row itself. So an owner acts only on its own writes and on rows that
	// are Done.
	//
	// Resume returns a stored row that it cannot decode with its Key, and with its bytes in
	// Damaged; the owner's next write replaces it. All other methods return
	// notify.ErrCorrupt for such a row.
	Resume(ctx context.Context, t Tenure, keys []notify.RowKey) ([]notify.Row, error)
	// Get returns the rows of keys, in the order of keys. For a key without a row it
	// returns a Row whose Key is the zero RowKey.
	Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error)
	// Chunk returns every row of one chunk, in the order of their keys: the rows of the
	// original envelope, of envelopes derived from it, and of receipts.
	Chunk(ctx context.Context, c notify.Chunk) ([]notify.Row, error)
	// Request calls fn with every row of a request, in the order of their keys, until fn
	// returns an error. Request returns that error.
	Request(ctx context.Context, base notify.Base, fn func(*notify.Row) error) error
	// Scan calls fn with every row whose base was created in [from, to), ms since 1970, in
	// the order of their keys.
	Scan(ctx context.Context, from, to int64, fn func(*notify.Row) error) error
}

// Tenure is a range of stamps for the outcome rows that one owner of a partition writes.
// An owner takes a tenure when it gets the partition, and a new one when its stamps run out
// or have become old. A stamp is close to the microseconds since 1970.
//
// A worker that was paused or cut off may write rows after another worker has taken its
// partition over. The stamps of these rows are below those of every later tenure, so they
// never replace a row of a later owner.
type Tenure struct {
	Topic     string
	Partition int32
	// Start is even and below the first stamp. Before is the Start of the previous tenure;
	// 0 if there was none.
	Start, Before int64
}

const (
	// TenureStamps is how many stamps a tenure has.
	TenureStamps = 1_000_000
	// tenureSpan is the least distance between the starts of two tenures. Stamps are even,
	// so that rows with StampBeside can use the odd numbers in between.
	tenureSpan = 2 * TenureStamps
)

// StampBeside marks a row whose writer does not own the partition. The row replaces the
// stored row. Every row that an owner stamps afterwards replaces it in turn.
const StampBeside = -1

// NextTenure returns the tenure that follows the one with the Start before (0: there was
// none). nowMicros is the current time in microseconds since 1970.
func NextTenure(topic string, partition int32, before, nowMicros int64) Tenure {
	start := nowMicros + nowMicros%2
	if before != 0 {
		start = max(start, before+tenureSpan)
	}
	return Tenure{Topic: topic, Partition: partition, Start: start, Before: before}
}

// Stamp returns the stamp of the owner's nth write, 0 < n < TenureStamps.
func (t Tenure) Stamp(n int64) int64 { return t.Start + 2*n }
