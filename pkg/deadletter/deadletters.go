package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// DeadLetterGroup is the consumer group that indexes notifications-failed and triggers-dlq.
const DeadLetterGroup = "dead-letter-index"

// Indexer turns the records of notifications-failed into dead letters. A dead letter is a row of
// the index. Its key is computed from the record, so a record that is read twice makes only one
// row.
type Indexer struct {
	Store     engine.DeadLetters
	Retention time.Duration // how long a dead letter is kept; default 30 days
	Logger    *slog.Logger
	// Decode contains, by topic, the functions that decode the records of topics other than
	// notifications-failed.
	Decode map[string]func(value []byte) (engine.DeadLetter, error)
	// Undecodable is called for each record that cannot be decoded. The indexer skips the record;
	// the record stays in the topic. May be nil.
	Undecodable func(topic string)
}

// Assigned implements log.Handler.
func (x *Indexer) Assigned(ctx context.Context, _ log.TopicPartition) log.PartitionHandler {
	return indexPartition{x, ctx}
}

type indexPartition struct {
	x   *Indexer
	ctx context.Context
}

// Handle implements log.PartitionHandler.
func (p indexPartition) Handle(ctx context.Context, msgs []*log.Msg) error {
	ds := make([]engine.DeadLetter, 0, len(msgs))
	for _, m := range msgs {
		decode := deadLetter
		if f := p.x.Decode[m.Topic]; f != nil {
			decode = f
		}
		d, err := decode(m.Value)
		if errors.Is(err, notify.ErrNewer) {
			return err // the group stops the partition at m
		}
		if err != nil {
			p.x.Logger.Error("a record of a failure cannot be decoded and is skipped", "topic", m.Topic, "partition", m.Partition, "offset", m.Offset, "err", err)
			if f := p.x.Undecodable; f != nil {
				f(m.Topic)
			}
			continue
		}
		if d.Epoch > 0 && d.Channel != ChannelTrigger { // a replay failed: keep the time at which the original failed
			was, err := p.x.Store.Get(ctx, d.ID, d.Epoch-1)
			switch {
			case err == nil:
				d.FirstFailed = was.FirstFailed
			case notify.KindOf(err) != notify.KindNotFound:
				return err
			}
		}
		d.State = engine.LetterDead
		d.Until = d.LastFailed + p.retention().Milliseconds()
		ds = append(ds, d)
	}
	if len(ds) > 0 {
		if err := p.x.Store.Put(ctx, ds); err != nil {
			return err // the group calls Handle again with the same batch
		}
	}
	for _, m := range msgs {
		m.Done()
	}
	return nil
}

func (p indexPartition) retention() time.Duration {
	if p.x.Retention > 0 {
		return p.x.Retention
	}
	return 30 * 24 * time.Hour
}

// deadLetter decodes a record of notifications-failed. It returns notify.ErrNewer for a record
// of a newer release.
func deadLetter(value []byte) (engine.DeadLetter, error) {
	var f notify.Failure
	if err := json.Unmarshal(value, &f); err != nil {
		return engine.DeadLetter{}, err
	}
	if f.Version > 1 {
		return engine.DeadLetter{}, notify.Newer("a record of "+notify.TopicFailed, f.Version, 1)
	}
	if f.Version != 1 {
		return engine.DeadLetter{}, fmt.Errorf("the record has the schema version %d, but this build reads only version 1", f.Version)
	}
	id, err := notify.ParseID(f.ID)
	if err != nil {
		return engine.DeadLetter{}, err
	}
	part, block, _ := strings.Cut(f.Chunk, ".")
	p, err := strconv.ParseUint(part, 10, 16)
	if err != nil {
		return engine.DeadLetter{}, fmt.Errorf("the chunk %q must have the form PARTITION.BLOCK: %w", f.Chunk, err)
	}
	b, err := strconv.ParseUint(block, 10, 32)
	if err != nil {
		return engine.DeadLetter{}, fmt.Errorf("the chunk %q must have the form PARTITION.BLOCK: %w", f.Chunk, err)
	}
	return engine.DeadLetter{
		ID: id, Epoch: uint16(f.Epoch), Caller: f.Caller, Campaign: f.Campaign, Channel: f.Channel,
		Category: f.Category, User: f.User, Template: f.Template, Class: f.Class, Code: f.Code,
		Provider: f.Provider, Attempts: f.Attempts, FirstFailed: f.Failed, LastFailed: f.Failed,
		Expires: f.Expires, Trace: f.Trace, Chunk: notify.Chunk{Base: id.Base, Partition: uint16(p), Block: uint32(b)},
		Topic: f.Topic, Partition: f.Partition, Offset: f.Offset,
	}, nil
}

// feedsKey is the name of the row of engine.Meta that contains, for each caller, the last position
// that the caller has read in its feed.
const feedsKey = "dead_letter_feeds"

// OldestUnseen reads up to feedPages pages for each caller. A page has feedPage dead letters.
const (
	feedPage  = 100
	feedPages = 10
)

// Feeds adds to the dead letters the position up to which each caller has read its feed. A caller
// has not seen the letters after its position. In one process, the indexer and the server of feeds
// must share one Feeds. Several processes may save positions: saving keeps the greater position of
// each caller. Feeds is safe for concurrent use.
type Feeds struct {
	engine.DeadLetters
	meta engine.Meta

	mu   sync.Mutex        // guards the field seen; held while seen is saved
	seen map[string]uint64 // by caller: the Seq that was read last; contains every caller that ever had a dead letter
}

// OpenFeeds returns the Feeds of store, with the stored positions of the callers.
func OpenFeeds(ctx context.Context, store engine.DeadLetters, meta engine.Meta) (*Feeds, error) {
	f := &Feeds{DeadLetters: store, meta: meta, seen: map[string]uint64{}}
	err := f.Join(ctx)
	return f, err
}

// Put implements engine.DeadLetters. It stores a new caller before the caller's first dead letter.
// So even after a crash, the caller of each dead letter is stored. A stored caller may have no
// dead letter.
func (f *Feeds) Put(ctx context.Context, ds []engine.DeadLetter) error {
	if err := f.storeCallers(ctx, ds); err != nil {
		return err
	}
	return f.DeadLetters.Put(ctx, ds)
}

// storeCallers stores the callers in ds that are not stored yet.
func (f *Feeds) storeCallers(ctx context.Context, ds []engine.DeadLetter) error {
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
		for _, caller := range fresh { // so that the next Put stores them
			delete(f.seen, caller)
		}
	}
	return err
}

// Feed implements engine.DeadLetters. It records that the caller has seen the returned letters.
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

// Callers returns every caller that ever had a dead letter, in no fixed order.
func (f *Feeds) Callers() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.seen))
}

// saveLocked merges f.seen into the stored row. For each caller it keeps the greater position. If
// two processes save at the same time, no position is lost. The caller holds f.mu. After an error
// f.seen is unchanged, but the row may have been stored.
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

// Join reads the positions that other processes have saved. A process that only counts unseen dead
// letters calls Join from time to time.
func (f *Feeds) Join(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	stored, _, err := engine.ReadMetaMap[uint64](ctx, f.meta, feedsKey)
	for caller, seq := range stored {
		f.seen[caller] = max(f.seen[caller], seq)
	}
	return err
}

// OldestUnseen returns when the oldest unseen dead letter failed (ms since 1970), or 0 if there is
// no unseen letter. A letter is unseen if its caller has not read it in the feed and if it was
// neither replayed nor discarded. OldestUnseen reads at most 1,000 letters of each caller, so it
// does not find a letter after 1,000 replayed letters in a row.
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

// firstDead finds the caller's first dead letter with a Seq greater than lastSeq, and returns the
// time at which this letter failed. It skips letters that were replayed or discarded. It returns 0
// if there is no dead letter.
func (f *Feeds) firstDead(ctx context.Context, caller string, lastSeq uint64) (failed int64, err error) {
	for range feedPages {
		ds, err := f.DeadLetters.Feed(ctx, caller, lastSeq, feedPage)
		if err != nil {
			return 0, err
		}
		for i := range ds {
			if ds[i].State == "dead" {
				return ds[i].LastFailed, nil
			}
			lastSeq = ds[i].Seq
		}
		if len(ds) < feedPage {
			break
		}
	}
	return 0, nil
}

// Tail sends outcomes to watchers. It never blocks a worker. A watcher that reads too slowly misses
// events, and can ask how many it has missed.
type Tail struct {
	mu       sync.Mutex // guards watchers, and the sends to their channels and the closing of the channels
	watchers map[*watcher]struct{}
	n        atomic.Int32 // len(watchers), readable without mu
}

type watcher struct {
	filter api.TailFilter
	ch     chan api.Event // closed when the subscription's context ends
	missed atomic.Int64
}

// Watching reports whether there is a watcher. If not, a worker need not make events.
func (t *Tail) Watching() bool { return t.n.Load() > 0 }

// Publish sends e to each watcher whose filter matches e.
func (t *Tail) Publish(e *api.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := range t.watchers {
		if !w.filter.Takes(e) {
			continue
		}
		select {
		case w.ch <- *e:
		default:
			w.missed.Add(1)
		}
	}
}

// Subscribe returns a channel with the events that match f, and a function that returns how many
// events were missed so far. The channel is closed when ctx ends.
func (t *Tail) Subscribe(ctx context.Context, f api.TailFilter) (events <-chan api.Event, missed func() int64) {
	w := &watcher{filter: f, ch: make(chan api.Event, 1024)}
	t.mu.Lock()
	if t.watchers == nil {
		t.watchers = map[*watcher]struct{}{}
	}
	t.watchers[w] = struct{}{}
	t.n.Add(1)
	t.mu.Unlock()
	context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.watchers, w)
		t.n.Add(-1)
		close(w.ch)
	})
	return w.ch, w.missed.Load
}
