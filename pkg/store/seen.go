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
	// filterTimeout bounds each call to the filter, because after this time it is faster to read
	// the rows. A claim waits for the filter until filterTimeout after the store has answered, and
	// not after the start of the call. A process that gets little processor time receives both
	// answers late. If it stopped waiting too early, the claim would be missing in the filter, and
	// all processes would have to read rows.
	filterTimeout = 250 * time.Millisecond
	// filterHeal is the time after a failure in which the filter is not called.
	filterHeal = time.Second
	// filterSkew is the largest assumed difference between the filter's clock and the clock of the
	// process that made an id.
	filterSkew = time.Second
)

// SeenStats holds counts since the start.
type SeenStats struct {
	Believed uint64 // keys whose rows were not read, because the filter did not have them
	Read     uint64 // keys whose rows were read
	False    uint64 // of the keys counted in Read: those that the filter reported but that have no row
	Blind    uint64 // of the keys counted in Read: those for which the filter could not be used
	Added    uint64 // claims that were added to the filter
	Missed   uint64 // claims that could not be added to the filter
	Off      bool   // true: the filter is not used at the moment
}

// Filter remembers ids for a limited time, its window, in little memory. It answers either that it
// certainly does not have an id, or that it may have the id. In the second case the caller must
// read the row. Ids are hashes whose values are spread over all 64 bits.
type Filter interface {
	// Add adds ids, which the filter then remembers for at least its window. After an error some of
	// the ids may be missing in the filter. Then the caller must call Incomplete before it calls
	// the method Seen again.
	Add(ctx context.Context, ids []uint64) error
	// Seen returns for each id whether the filter may have it. If the result maybe has the value
	// false for an id, the id was not added since the time completeSince. But it may have been
	// added before, so the caller must also read the row of an id that may be older than this time.
	Seen(ctx context.Context, ids []uint64) (maybe []bool, completeSince time.Time, err error)
	// Incomplete records that an id is missing in the filter. From then on, the method Seen returns
	// a time completeSince that is not before the call of Incomplete.
	Incomplete(ctx context.Context) error
}

// Seen is an engine.Status that asks a filter first. So workers need not read outcome rows that
// certainly do not exist. Put adds the key of each claim to the filter. So a key has no row if it
// was made after the time completeSince (see Filter.Seen) and the filter does not have it.
//
// The filter alone never makes a record a duplicate: if the filter may have a key, Seen reads the
// row. The filter never stops deliveries: if it does not answer, Seen reads the rows, and claims
// are stored without the filter.
//
// All code that writes outcome rows, or reads them by key, must use a Seen with the same filter.
// Otherwise a reader may conclude that a written row does not exist.
type Seen struct {
	engine.Status
	filter Filter
	log    *slog.Logger
	// disabled is true while a claim is missing in the filter. Then the filter is not used until
	// Incomplete has succeeded.
	disabled    atomic.Bool
	pausedUntil atomic.Int64  // the filter is not asked before this time, because a look-up failed; ns since 1970
	wake        chan struct{} // wakes Run when disabled was set

	believed, read, falseHits, unasked, added, missed atomic.Uint64
}

// NewSeen returns a Seen that reads and writes the rows of the given status store. It writes a log
// line when the filter fails and when the filter works again. The caller must start Run.
func NewSeen(status engine.Status, filter Filter, log *slog.Logger) *Seen {
	return &Seen{Status: status, filter: filter, log: log, wake: make(chan struct{}, 1)}
}

// Put stores outcome rows and adds the keys of claims to the filter, both at the same time. It
// returns when the filter and the store have answered, and only then does the caller call the
// provider. So no provider was called for a key that is stored but not in the filter. Put stores
// the rows even if the filter fails.
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

// Get returns the rows with the given keys. It does not read rows that certainly do not exist.
func (s *Seen) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	return s.getFiltered(ctx, keys, s.Status.Get)
}

// Resume is like Get, for the owner of a tenure.
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
	var completeSince time.Time
	if len(keys) == 0 || !s.askFilter(ctx, func(ctx context.Context) (err error) {
		maybe, completeSince, err = s.filter.Seen(ctx, ids)
		return err
	}) {
		s.read.Add(uint64(len(keys)))
		s.unasked.Add(uint64(len(keys)))
		return from(ctx, keys)
	}
	var which []int // indexes of the keys to read
	var ask []notify.RowKey
	for i, k := range keys {
		since := k.Chunk.Base.Time().Add(-filterSkew)
		if maybe[i] || k.Kind != notify.RowOutcome || !since.After(completeSince) {
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

// askFilter calls lookUp and returns true if lookUp succeeded. It does not call lookUp while the
// filter is disabled, or within filterHeal after a failed look-up. After that time the filter may
// be used again at once, because a failed look-up loses no id.
func (s *Seen) askFilter(ctx context.Context, lookUp func(ctx context.Context) error) bool {
	if s.disabled.Load() || time.Now().UnixNano() < s.pausedUntil.Load() {
		return false
	}
	call, stop := context.WithTimeout(ctx, filterTimeout)
	defer stop()
	err := lookUp(call)
	if err == nil || ctx.Err() != nil {
		return err == nil
	}
	if now := time.Now(); s.pausedUntil.Swap(now.Add(filterHeal).UnixNano()) < now.UnixNano() {
		s.log.Warn("the seen-filter does not answer; rows are read instead", "err", err)
	}
	return false
}

// addToFilter adds claims to the filter and returns true if it succeeded. A failure disables the
// filter, except if callerCtx has ended: then the caller of Put does not use these claims.
func (s *Seen) addToFilter(ctx, callerCtx context.Context, ids []uint64) bool {
	if s.disabled.Load() {
		return false
	}
	err := s.filter.Add(ctx, ids)
	if err == nil {
		return true
	}
	if callerCtx.Err() != nil {
		return false // the caller has stopped waiting, so it makes no call for these claims
	}
	if s.disabled.CompareAndSwap(false, true) {
		s.log.Warn("claims could not be added to the seen-filter; rows are read instead", "err", err)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return false
}

// Run enables the filter again after failures. Before it does so, it calls Incomplete, so that all
// processes read the rows of keys that were made while claims could not be added. Run returns nil
// when ctx ends.
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
				s.log.Info("the seen-filter works again", "after", time.Since(began))
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

// filterID returns the id of a row in the filter. The upper 32 bits are the time at which the row's
// request was made, in seconds since 1970. The lower 32 bits are from a hash. A filter with several
// parts chooses the part by the upper 32 bits. So rows that are claimed together are in one or two
// parts. The id must be the same in every process and every release. Otherwise a release would not
// find the ids that an earlier release added.
func filterID(k *notify.RowKey) uint64 {
	var b [rowKeyLen]byte
	return uint64(k.Chunk.Base.Time().Unix())<<32 | xxhash.Sum64(appendRowKey(b[:0], k))>>32
}
