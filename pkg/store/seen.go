package store

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	// filterTimeout bounds each look-up in the filter; beyond it, reading the rows is faster. A
	// claim waits this long for the filter after the store has answered. The wait starts then
	// because a process that gets little processor time hears late from both, and a claim that
	// is missing in the filter makes all processes read rows.
	filterTimeout = 250 * time.Millisecond
	// filterHeal is the wait after a failure before the filter is asked again.
	filterHeal = time.Second
	// filterSkew is the largest assumed difference between the clock of the process that made
	// an id and the filter's clock.
	filterSkew = time.Second
)

// SeenStats are counts since the start.
type SeenStats struct {
	Believed uint64 // keys whose rows were not read, because the filter did not know them
	Read     uint64 // keys whose rows were read
	False    uint64 // of Read: the filter knew the key, but there was no row
	Blind    uint64 // of Read: the filter could not be asked
	Added    uint64 // claims that were added to the filter
	Missed   uint64 // claims that could not be added to it
	Off      bool   // the filter is not used at the moment
}

// Filter remembers ids for a while in little memory. Only its answer that it does not know an id
// is reliable; if it may know an id, the row must be read. Ids are hashes, spread over all 64
// bits.
type Filter interface {
	// Add remembers ids for at least the filter's window. After an error any subset of them may
	// be remembered; the caller must then call Incomplete before it relies on Seen.
	Add(ctx context.Context, ids []uint64) error
	// Seen reports for each id whether it may have been added. False means that it was not added
	// since complete. An id that may have been added before complete must be looked up.
	Seen(ctx context.Context, ids []uint64) (maybe []bool, complete time.Time, err error)
	// Incomplete records that an id is missing in the filter: complete becomes at least now.
	Incomplete(ctx context.Context) error
}

// Seen is an engine.Status with a filter in front, which saves workers the reads of outcome rows
// that cannot exist. Put adds each claimed key to the filter. So a key that the filter does not
// know, made since the filter is complete, has no row.
//
// The filter never decides that a record is a duplicate: if it may know a key, the row is read.
// It never delays a delivery: if it does not answer, rows are read and claims go on without it.
//
// All code that writes outcome rows or reads them by key must use a Seen over the same filter. A
// row that was written around the filter could be taken for missing.
type Seen struct {
	engine.Status
	filter      Filter
	log         *slog.Logger
	disabled    atomic.Bool   // a claim is missing in the filter; the filter is not used until Incomplete has succeeded
	pausedUntil atomic.Int64  // after a failed look-up the filter is not asked before this time, ns since 1970
	wake        chan struct{} // tells Run that disabled was set

	believed, read, falseHits, unasked, added, missed atomic.Uint64
}

// NewSeen returns a Seen over next. It logs to log when the filter fails and when it is back. The
// caller must run Run.
func NewSeen(next engine.Status, filter Filter, log *slog.Logger) *Seen {
	return &Seen{Status: next, filter: filter, log: log, wake: make(chan struct{}, 1)}
}

// Put adds the outcome rows' keys to the filter and stores the rows at the same time. It returns
// when both are done. The caller acts on a claim only after Put has returned, so no call was made
// yet for a key that is stored but not in the filter. The rows are stored even if the filter
// fails.
func (s *Seen) Put(ctx context.Context, rows []notify.Row) error {
	ids := make([]uint64, 0, len(rows))
	for i := range rows {
		if k := &rows[i].Key; k.Kind == notify.RowOutcome {
			ids = append(ids, filterID(k))
		}
	}
	var g sync.WaitGroup
	telling, giveUp := context.WithCancel(ctx)
	defer giveUp()
	if len(ids) > 0 {
		g.Go(func() {
			if s.addToFilter(telling, ctx, ids) {
				s.added.Add(uint64(len(ids)))
			} else {
				s.missed.Add(uint64(len(ids)))
			}
		})
	}
	err := s.Status.Put(ctx, rows)
	defer time.AfterFunc(filterTimeout, giveUp).Stop()
	g.Wait()
	return err
}

// Get returns the rows of keys. It does not read keys that cannot have a row.
func (s *Seen) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	return s.getFiltered(ctx, keys, s.Status.Get)
}

// Resume is Get for the owner of a tenure.
func (s *Seen) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	return s.getFiltered(ctx, keys, func(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
		return s.Status.Resume(ctx, t, keys)
	})
}

func (s *Seen) getFiltered(ctx context.Context, keys []notify.RowKey, from func(context.Context, []notify.RowKey) ([]notify.Row, error)) ([]notify.Row, error) {
	ids := make([]uint64, len(keys))
	for i := range keys {
		ids[i] = filterID(&keys[i])
	}
	var maybe []bool
	var complete time.Time
	if len(keys) == 0 || !s.askFilter(ctx, func(ctx context.Context) (err error) {
		maybe, complete, err = s.filter.Seen(ctx, ids)
		return err
	}) {
		s.read.Add(uint64(len(keys)))
		s.unasked.Add(uint64(len(keys)))
		return from(ctx, keys)
	}
	var which []int // keys to read
	var ask []notify.RowKey
	for i, k := range keys {
		since := k.Chunk.Base.Time().Add(-filterSkew)
		if maybe[i] || k.Kind != notify.RowOutcome || !since.After(complete) {
			which, ask = append(which, i), append(ask, k)
		}
	}
	s.believed.Add(uint64(len(keys) - len(ask)))
	out := make([]notify.Row, len(keys))
	if len(ask) == 0 {
		return out, nil
	}
	s.read.Add(uint64(len(ask)))
	rows, err := from(ctx, ask)
	if err != nil {
		return nil, err
	}
	for n, i := range which {
		out[i] = rows[n]
		if maybe[i] && rows[n].Key == (notify.RowKey{}) {
			s.falseHits.Add(1)
		}
	}
	return out, nil
}

// askFilter calls ask and reports whether it succeeded. It does not call it while the filter is
// disabled or a look-up has just failed. A failed look-up loses nothing in the filter, so the
// filter is asked again after filterHeal.
func (s *Seen) askFilter(ctx context.Context, ask func(ctx context.Context) error) bool {
	if s.disabled.Load() || time.Now().UnixNano() < s.pausedUntil.Load() {
		return false
	}
	call, stop := context.WithTimeout(ctx, filterTimeout)
	defer stop()
	err := ask(call)
	if err == nil || ctx.Err() != nil {
		return err == nil
	}
	if now := time.Now(); s.pausedUntil.Swap(now.Add(filterHeal).UnixNano()) < now.UnixNano() {
		s.log.Warn("the seen-filter does not answer; rows are read instead", "err", err)
	}
	return false
}

// addToFilter adds claims to the filter and reports whether it succeeded. A failure disables the
// filter, unless of, the context of the caller, has ended.
func (s *Seen) addToFilter(ctx, of context.Context, ids []uint64) bool {
	if s.disabled.Load() {
		return false
	}
	err := s.filter.Add(ctx, ids)
	if err == nil {
		return true
	}
	if of.Err() != nil {
		return false // the caller gave up, so it makes no call for these claims
	}
	if s.disabled.CompareAndSwap(false, true) {
		s.log.Warn("the seen-filter was not told of claims; rows are read instead", "err", err)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return false
}

// Run re-enables the filter after failures until ctx ends, and then returns nil. It first records
// in the filter that claims are missing (Incomplete), so that no process relies on the filter
// for that time.
func (s *Seen) Run(ctx context.Context) error {
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil
		}
		began := time.Now()
		for s.disabled.Load() {
			call, stop := context.WithTimeout(ctx, filterTimeout)
			err := s.filter.Incomplete(call)
			stop()
			if err == nil {
				s.disabled.Store(false)
				s.log.Info("the seen-filter is back", "after", time.Since(began))
				break
			}
			if !notify.Sleep(ctx, filterHeal) {
				return nil
			}
		}
	}
}

// Stats returns the counts.
func (s *Seen) Stats() SeenStats {
	return SeenStats{
		Believed: s.believed.Load(), Read: s.read.Load(), False: s.falseHits.Load(), Blind: s.unasked.Load(),
		Added: s.added.Load(), Missed: s.missed.Load(), Off: s.disabled.Load() || time.Now().UnixNano() < s.pausedUntil.Load(),
	}
}

// filterID returns a row's id in the filter: the second in which its request was made, then 32
// bits of a hash. A filter with several parts chooses the part by the upper half, so rows that
// are claimed together go to one or two parts. The id must stay the same in every process and
// release, or a release would not recognise the ids that an earlier one added.
func filterID(k *notify.RowKey) uint64 {
	var b [rowKeyLen]byte
	return uint64(k.Chunk.Base.Time().Unix())<<32 | xxhash.Sum64(appendRowKey(b[:0], k))>>32
}
