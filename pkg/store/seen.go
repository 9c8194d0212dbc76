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
	// filterTimeout bounds each look-up in the filter: longer than that, reading the rows
	// is faster. A claim waits so long for the filter once the store has answered. A
	// process that gets little processor time hears late from both, and a claim that the
	// filter is not told of makes all processes read rows.
	filterTimeout = 250 * time.Millisecond
	// filterHeal is how long after a failure the filter is asked again.
	filterHeal = time.Second
	// filterSkew is the largest difference between the clocks of whoever makes ids and
	// of the filter.
	filterSkew = time.Second
)

// SeenStats are counts since the start.
type SeenStats struct {
	Believed uint64 // keys that were not read, for the filter did not know them
	Read     uint64 // keys that were
	False    uint64 // of those read: the filter knew them, and there was no row
	Blind    uint64 // of those read: the filter could not be asked
	Added    uint64 // claims that the filter knows
	Missed   uint64 // claims that it was not told of
	Off      bool   // the filter is not asked now
}

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

// Seen is an engine.Status behind a filter, which keeps workers from reading outcome
// rows that cannot be there. It remembers in the filter whatever was claimed, before it is
// claimed; a key that the filter does not know, made since the filter is complete, has
// no row.
//
// The filter never decides that something is a duplicate: what it may know is read. And
// it never keeps a message back: where it does not answer, rows are read, and claims go
// on without it (delivery beats dedup).
//
// Everybody who writes outcome rows to the store, or reads them by key, does so through
// a Seen over the same filter: a row that was written around it could be taken for one
// that is not there.
type Seen struct {
	engine.Status
	filter Filter
	log    *slog.Logger
	off    atomic.Bool   // the filter was not told of a claim: it is not used until it was told Incomplete
	blind  atomic.Int64  // until then it is not asked, ns since 1970: a look-up has failed
	wake   chan struct{} // off was set

	believed, read, falseHits, unasked, added, missed atomic.Uint64
}

// NewSeen returns next behind a filter. log gets a line when the filter fails, and one
// when it is back. Run must run.
func NewSeen(next engine.Status, filter Filter, log *slog.Logger) *Seen {
	return &Seen{Status: next, filter: filter, log: log, wake: make(chan struct{}, 1)}
}

// Put remembers the outcome rows' keys and stores the rows at the same time, and returns
// when both is done. Its caller acts on a claim only after that, so a key that is stored
// and not remembered yet is of a claim that nothing was done for. What the filter could
// not be told of is stored all the same.
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
			if s.add(telling, ctx, ids) {
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

// Get returns the rows of keys. Those that surely have none are not read.
func (s *Seen) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	return s.get(ctx, keys, s.Status.Get)
}

// Resume is Get for the owner of a tenure.
func (s *Seen) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	return s.get(ctx, keys, func(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
		return s.Status.Resume(ctx, t, keys)
	})
}

func (s *Seen) get(ctx context.Context, keys []notify.RowKey, from func(context.Context, []notify.RowKey) ([]notify.Row, error)) ([]notify.Row, error) {
	ids := make([]uint64, len(keys))
	for i := range keys {
		ids[i] = filterID(&keys[i])
	}
	var maybe []bool
	var complete time.Time
	if len(keys) == 0 || !s.lookUp(ctx, func(ctx context.Context) (err error) {
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

// lookUp asks the filter, unless it has just failed or may not know of a claim. A look-up that
// fails leaves nothing out of the filter: it is asked again after filterHeal.
func (s *Seen) lookUp(ctx context.Context, ask func(ctx context.Context) error) bool {
	if s.off.Load() || time.Now().UnixNano() < s.blind.Load() {
		return false
	}
	call, stop := context.WithTimeout(ctx, filterTimeout)
	defer stop()
	err := ask(call)
	if err == nil || ctx.Err() != nil {
		return err == nil
	}
	if now := time.Now(); s.blind.Swap(now.Add(filterHeal).UnixNano()) < now.UnixNano() {
		s.log.Warn("the seen-filter does not answer; rows are read instead", "err", err)
	}
	return false
}

// add tells the filter of claims, unless it is off; of is the context of the caller. A
// failure turns it off.
func (s *Seen) add(ctx, of context.Context, ids []uint64) bool {
	if s.off.Load() {
		return false
	}
	err := s.filter.Add(ctx, ids)
	if err == nil {
		return true
	}
	if of.Err() != nil {
		return false // the caller gave up: what it wanted to claim is not called
	}
	if s.off.CompareAndSwap(false, true) {
		s.log.Warn("the seen-filter was not told of claims; rows are read instead", "err", err)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return false
}

// Run brings the filter back after a failure until ctx ends, and returns nil
// then. The filter is asked again only after it was told that something is
// missing in it, so that no process believes what it says of that time.
func (s *Seen) Run(ctx context.Context) error {
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil
		}
		began := time.Now()
		for s.off.Load() {
			call, stop := context.WithTimeout(ctx, filterTimeout)
			err := s.filter.Incomplete(call)
			stop()
			if err == nil {
				s.off.Store(false)
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
		Added: s.added.Load(), Missed: s.missed.Load(), Off: s.off.Load() || time.Now().UnixNano() < s.blind.Load(),
	}
}

// filterID names a row in the filter: the second in which its request was made, then 32 bits
// of a hash. A filter that is spread over parts spreads it by the upper half, so what
// is claimed together goes to one or two parts. It is the same in every process and
// release: another one would not know what an earlier one added.
func filterID(k *notify.RowKey) uint64 {
	var b [rowKeyLen]byte
	return uint64(k.Chunk.Base.Time().Unix())<<32 | xxhash.Sum64(appendRowKey(b[:0], k))>>32
}
