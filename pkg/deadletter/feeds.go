package deadletter

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
)

// feedsKey is the Meta row with how far each caller has read its feed.
const feedsKey = "dead_letter_feeds"

// feedPage is how many dead letters are looked at together, feedPages how many
// times for one caller.
const (
	feedPage  = 100
	feedPages = 10
)

// Feeds are dead letters that remember how far each caller has been handed its
// feed, also over a restart: what lies behind that nobody has seen. Within a
// process both who stores dead letters and who serves feeds must use the same one;
// several processes join what each of them knows whenever one saves it. It may be
// called from any goroutine.
type Feeds struct {
	engine.DeadLetters
	meta engine.Meta

	mu   sync.Mutex
	seen map[string]uint64 // Seq, by every caller that has had a dead letter
}

// OpenFeeds reads how far the callers were.
func OpenFeeds(ctx context.Context, store engine.DeadLetters, meta engine.Meta) (*Feeds, error) {
	f := &Feeds{DeadLetters: store, meta: meta, seen: map[string]uint64{}}
	err := f.Join(ctx)
	return f, err
}

// Put implements engine.DeadLetters. A caller is known before its first dead
// letter is stored: a crash in between leaves a caller without any.
func (f *Feeds) Put(ctx context.Context, ds []engine.DeadLetter) error {
	if err := f.know(ctx, ds); err != nil {
		return err
	}
	return f.DeadLetters.Put(ctx, ds)
}

// know makes the callers of ds known, durably.
func (f *Feeds) know(ctx context.Context, ds []engine.DeadLetter) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var fresh []string
	for i := range ds {
		if _, ok := f.seen[ds[i].Caller]; !ok {
			f.seen[ds[i].Caller] = 0
			fresh = append(fresh, ds[i].Caller)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	err := f.saveLocked(ctx)
	if err != nil {
		for _, caller := range fresh { // the next Put has to store them
			delete(f.seen, caller)
		}
	}
	return err
}

// Feed implements engine.DeadLetters: what it returns is seen.
func (f *Feeds) Feed(ctx context.Context, caller string, after uint64, max int) ([]engine.DeadLetter, error) {
	ds, err := f.DeadLetters.Feed(ctx, caller, after, max)
	if err != nil || len(ds) == 0 {
		return ds, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if last := ds[len(ds)-1].Seq; last > f.seen[caller] {
		f.seen[caller] = last
		err = f.saveLocked(ctx)
	}
	return ds, err
}

// Callers are those that ever had a dead letter, in no order.
func (f *Feeds) Callers() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.seen))
}

// saveLocked stores what this process knows beside what the others have stored: of
// each caller the farther place counts. Two processes that save at the same moment
// lose nothing. After an error f.seen is unchanged, and the row may be stored.
func (f *Feeds) saveLocked(ctx context.Context) error {
	joined, err := engine.ChangeMetaMap(ctx, f.meta, feedsKey, func(all map[string]uint64) bool {
		changed := false
		for caller, seq := range f.seen {
			if stored, ok := all[caller]; !ok || seq > stored {
				all[caller], changed = seq, true
			}
		}
		return changed
	})
	if err == nil {
		f.seen = joined
	}
	return err
}

// Join reads what other processes have saved. A process that only counts unseen
// dead letters calls it from time to time.
func (f *Feeds) Join(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	stored, _, err := engine.ReadMetaMap[uint64](ctx, f.meta, feedsKey)
	for caller, seq := range stored {
		f.seen[caller] = max(f.seen[caller], seq)
	}
	return err
}

// OldestUnseen is when the oldest dead letter failed (ms since 1970) that was
// neither handed to its caller by the feed, nor replayed or discarded; 0: there
// is none. It reads a page a caller: more than 1,000 replayed ones in a row hide
// what is behind them.
func (f *Feeds) OldestUnseen(ctx context.Context) (oldest int64, err error) {
	f.mu.Lock()
	seen := maps.Clone(f.seen)
	f.mu.Unlock()
	for caller, at := range seen {
		failed, err := f.firstDead(ctx, caller, at)
		if err != nil {
			return 0, err
		}
		if failed != 0 && (oldest == 0 || failed < oldest) {
			oldest = failed
		}
	}
	return oldest, nil
}

func (f *Feeds) firstDead(ctx context.Context, caller string, after uint64) (failed int64, err error) {
	for range feedPages {
		ds, err := f.DeadLetters.Feed(ctx, caller, after, feedPage)
		if err != nil {
			return 0, err
		}
		for i := range ds {
			if ds[i].State == "dead" {
				return ds[i].LastFailed, nil
			}
			after = ds[i].Seq
		}
		if len(ds) < feedPage {
			break
		}
	}
	return 0, nil
}
