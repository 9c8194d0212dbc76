package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Status keeps what became of notifications, by chunk.
type Status interface {
	// Put stores rows. Of the writes of a key the one with the greatest Row.Stamp
	// stands, whatever the order in which they arrive (see Tenure for the cases in
	// which an engine may show an older one in between); of those without stamps the
	// last one does. Rows of one request (Base)
	// are stored, and seen by readers, all or none of one call. So are all of a call
	// that is refused. An engine of many machines may, after an error, hold those of
	// some requests of the call.
	Put(ctx context.Context, rows []notify.Row) error
	// TakeOver begins a tenure of a partition of a topic: its stamps are above all
	// of the tenures that were begun before. It fences no writer by itself. The caller
	// must use the tenure only if it still owned the partition after the return.
	TakeOver(ctx context.Context, topic string, partition int32) (Tenure, error)
	// Resume returns the rows of keys as Get does, for the owner of t to act on.
	// What it returns as Done stands: rows of earlier tenures that arrive afterwards
	// do not replace it. Those of other rows may, until the owner has written the row
	// itself. So an owner acts on nothing but its own writes and what is Done.
	// A row that is stored and cannot be decoded is returned with its Key and its
	// bytes in Damaged; the owner's next write replaces it. All other calls that meet
	// it return notify.ErrCorrupt.
	Resume(ctx context.Context, t Tenure, keys []notify.RowKey) ([]notify.Row, error)
	// Get returns the rows of keys, in the order of keys; a key without a row
	// yields a Row whose Key is the zero RowKey.
	Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error)
	// Chunk returns every row of one chunk: the original's, those of envelopes
	// derived from it, and receipts, in the order of their keys.
	Chunk(ctx context.Context, c notify.Chunk) ([]notify.Row, error)
	// Request calls fn with every row of a request in the order of their keys,
	// until fn returns an error, which Request returns.
	Request(ctx context.Context, base notify.Base, fn func(*notify.Row) error) error
	// Scan calls fn with every row whose base was made in [from, to) (ms since
	// 1970), in the order of their keys.
	Scan(ctx context.Context, from, to int64, fn func(*notify.Row) error) error
}

// Tenure is a range of stamps for the outcome rows that one owner of a partition
// writes. An owner takes one when it is given the partition, and another one when
// the stamps run out or have become old. Stamps are about microseconds since 1970.
//
// A worker that was paused or cut off may write rows after another one has taken
// its partition over. Their stamps are below those of every later tenure, so they
// never replace what a later owner wrote.
type Tenure struct {
	Topic     string
	Partition int32
	// Start is below the first stamp and even; Before is the Start of the tenure
	// before, 0 where there was none.
	Start, Before int64
}

const (
	// TenureStamps is how many stamps a tenure has.
	TenureStamps = 1_000_000
	// tenureSpan is the distance between tenures. Stamps are even, so that what is
	// written beside the owner (StampBeside) has room between two of them.
	tenureSpan = 2 * TenureStamps
)

// StampBeside marks a row whose writer does not own its partition. It replaces the
// stored row, and every row that an owner stamps afterwards replaces it.
const StampBeside = -1

// NextTenure returns the tenure that follows the one that began at before, at
// nowMicros (microseconds since 1970). Before 0 means that there was none.
func NextTenure(topic string, partition int32, before, nowMicros int64) Tenure {
	start := nowMicros + nowMicros%2
	if before != 0 {
		start = max(start, before+tenureSpan)
	}
	return Tenure{Topic: topic, Partition: partition, Start: start, Before: before}
}

// Stamp returns the stamp of the owner's nth write, 0 < n < TenureStamps.
func (t Tenure) Stamp(n int64) int64 { return t.Start + 2*n }
