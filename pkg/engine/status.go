package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Status stores the outcome rows of notifications, by chunk.
type Status interface {
	// Put stores rows. If a key is written several times, the row with the greatest Row.Stamp
	// wins, even if it arrives first. For a short time an engine may still return an older row;
	// see Resume. Between rows without stamps, the last write wins.
	//
	// Put stores all rows of one request (Base) or none, and they become visible together. If
	// Put refuses a row (notify.KindInvalid), it stores no row of the call. In an engine with
	// several machines an error may leave the rows of some requests stored.
	Put(ctx context.Context, rows []notify.Row) error
	// TakeOver begins a tenure of a partition of a topic. The stamps of the tenure are
	// greater than the stamps of all earlier tenures. TakeOver does not stop an earlier
	// owner from writing. The caller may use the tenure only if it still owns the partition
	// after TakeOver has returned.
	TakeOver(ctx context.Context, topic string, partition int32) (Tenure, error)
	// Resume returns the rows of keys as Get does. The owner of t uses them to continue the
	// work of earlier owners. A returned row in which Done is true is final: no late row of an
	// earlier tenure replaces it. Any other returned row may still be replaced by a late row of
	// an earlier tenure, until the owner itself writes the row. So an owner acts only on rows
	// that it has written itself and on rows in which Done is true.
	//
	// If Resume cannot decode a stored row, it returns the Key of the row and the stored bytes
	// in Damaged. The owner's next write replaces the damaged row. All other methods return
	// notify.ErrCorrupt for such a row.
	Resume(ctx context.Context, t Tenure, keys []notify.RowKey) ([]notify.Row, error)
	// Get returns the rows of keys, in the order of keys. For a key without a row it
	// returns a Row whose Key is the zero RowKey.
	Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error)
	// Chunk returns every row of one chunk, in the order of their keys. These are the rows
	// of the original envelope, of the envelopes that were derived from the original, and
	// of receipts.
	Chunk(ctx context.Context, c notify.Chunk) ([]notify.Row, error)
	// Request calls fn with every row of a request, in the order of their keys. It stops
	// when fn returns an error, and returns that error.
	Request(ctx context.Context, base notify.Base, fn func(*notify.Row) error) error
	// Scan calls fn with every row whose base was created in the period [from, to), in the
	// order of their keys. from and to are in ms since 1970.
	Scan(ctx context.Context, from, to int64, fn func(*notify.Row) error) error
}

// Tenure is a range of stamps for the outcome rows that one owner of a partition writes. An
// owner begins a tenure when it gets the partition. It begins a new tenure when all stamps
// are used or when the stamps have become old. The value of a stamp is close to the current
// time in microseconds since 1970.
//
// A worker that was paused or had lost its connection may write rows after another worker
// has taken over the partition. The stamps of these rows are less than the stamps of every
// later tenure. So these rows never replace a row of a later owner.
type Tenure struct {
	Topic     string
	Partition int32
	// Start is even and less than the first stamp. Before is the Start of the previous
	// tenure; 0 if this is the first tenure.
	Start, Before int64
}

const (
	// TenureStamps is how many stamps a tenure has.
	TenureStamps = 1_000_000
	// tenureSpan is the least distance between the starts of two tenures. The stamps of a
	// tenure are even numbers. The odd numbers between them are for rows with StampBeside.
	tenureSpan = 2 * TenureStamps
)

// StampBeside is the stamp of a row from a writer that does not own the partition. The row
// replaces the stored row. The owner's next write then replaces the row.
const StampBeside = -1

// NextTenure returns the tenure that follows a tenure whose Start is previousStart. If
// previousStart is 0, it returns the first tenure. nowMicros is the current time in
// microseconds since 1970.
func NextTenure(topic string, partition int32, previousStart, nowMicros int64) Tenure {
	start := nowMicros + nowMicros%2
	if previousStart != 0 {
		start = max(start, previousStart+tenureSpan)
	}
	return Tenure{Topic: topic, Partition: partition, Start: start, Before: previousStart}
}

// Stamp returns the stamp of the owner's nth write, 0 < n < TenureStamps.
func (t Tenure) Stamp(n int64) int64 { return t.Start + 2*n }
