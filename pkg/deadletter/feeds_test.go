package deadletter

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

// feedMeta is the Meta of one process, which a test may break. Another process acts
// once between a read of this one and the write that follows it.
type feedMeta struct {
	engine.Meta
	other func()
	err   error
}

func (m *feedMeta) GetMeta(ctx context.Context, name string) ([]byte, error) {
	v, err := m.Meta.GetMeta(ctx, name)
	if act := m.other; act != nil {
		m.other = nil
		act()
	}
	return v, err
}

func (m *feedMeta) SwapMeta(ctx context.Context, name string, old, value []byte) (bool, error) {
	if m.err != nil {
		return false, m.err
	}
	return m.Meta.SwapMeta(ctx, name, old, value)
}

// letterOf is a dead letter of a caller that failed at a time.
func letterOf(n uint32, caller string, failed int64) engine.DeadLetter {
	return engine.DeadLetter{
		ID: notify.ID{Base: notify.NewBase(failedAt), Index: n}, Caller: caller, LastFailed: failed, Until: failed + 1000, State: "dead",
	}
}

func oldest(t *testing.T, f *Feeds, want int64) {
	t.Helper()
	if got, err := f.OldestUnseen(t.Context()); err != nil || got != want {
		t.Errorf("the oldest unseen failed at %d, %v; want %d", got, err, want)
	}
}

// TestFeedsKnowWhatWasSeen reads feeds, replays, and starts again in between.
func TestFeedsKnowWhatWasSeen(t *testing.T) {
	t.Parallel()
	store, meta := memory.New().DeadLetters(), memory.New().Meta()
	open := func() *Feeds {
		f, err := OpenFeeds(t.Context(), store, meta)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := open()
	oldest(t, f, 0)
	letters := []engine.DeadLetter{letterOf(1, "shop", 100), letterOf(2, "shop", 200), letterOf(3, "bank", 300)}
	if err := f.Put(t.Context(), letters); err != nil {
		t.Fatal(err)
	}
	oldest(t, f, 100)
	if ds, err := f.Feed(t.Context(), "shop", 0, 1); err != nil || len(ds) != 1 {
		t.Fatalf("%v, %v", ds, err)
	}
	oldest(t, f, 200)
	f = open() // the place is durable, and so are callers that never read
	oldest(t, f, 200)
	if _, err := f.Feed(t.Context(), "shop", 0, 1); err != nil { // read again from the start: nothing becomes unseen
		t.Fatal(err)
	}
	oldest(t, f, 200)
	if moved, err := f.Move(t.Context(), []engine.LetterMove{{ID: letters[1].ID, Epoch: letters[1].Epoch, From: letters[1].State, To: engine.LetterReplayed, Job: "j"}}); err != nil || !moved[0] {
		t.Fatal(moved, err)
	}
	oldest(t, f, 300)
	if _, err := f.Feed(t.Context(), "bank", 0, 10); err != nil {
		t.Fatal(err)
	}
	oldest(t, f, 0)
}

// TestFeedsPassManyReplayed looks behind more than a page of replayed ones.
func TestFeedsPassManyReplayed(t *testing.T) {
	t.Parallel()
	f, err := OpenFeeds(t.Context(), memory.New().DeadLetters(), memory.New().Meta())
	if err != nil {
		t.Fatal(err)
	}
	var ds []engine.DeadLetter
	for i := range uint32(feedPage + 1) {
		ds = append(ds, letterOf(i, "shop", int64(i)+1))
		ds[i].State = "replayed"
	}
	ds[feedPage].State = "dead"
	if err := f.Put(t.Context(), ds); err != nil {
		t.Fatal(err)
	}
	oldest(t, f, feedPage+1)
}

// TestFeedsStoreTheCallerFirst breaks the row of the callers: a dead letter that
// would be forgotten by the next start is not stored, and the next try does both.
func TestFeedsStoreTheCallerFirst(t *testing.T) {
	t.Parallel()
	store, meta := memory.New().DeadLetters(), &feedMeta{Meta: memory.New().Meta(), err: errors.New("away")}
	f, err := OpenFeeds(t.Context(), store, meta)
	if err != nil {
		t.Fatal(err)
	}
	put := func() error { return f.Put(t.Context(), []engine.DeadLetter{letterOf(1, "shop", 100)}) }
	if err := put(); !errors.Is(err, meta.err) {
		t.Fatalf("stored: %v", err)
	}
	if ds, _ := store.Feed(t.Context(), "shop", 0, 1); len(ds) != 0 {
		t.Fatal("a dead letter of a caller that is not known is stored")
	}
	meta.err = nil
	if err := put(); err != nil {
		t.Fatal(err)
	}
	if f, err = OpenFeeds(t.Context(), store, meta); err != nil {
		t.Fatal(err)
	}
	oldest(t, f, 100)
}

// TestFeedsOfTwoProcesses: a process learns what another has stored and served, and
// what two processes save at the same moment is known to a third one.
func TestFeedsOfTwoProcesses(t *testing.T) {
	t.Parallel()
	ctx, store := t.Context(), memory.New()
	open := func() (*Feeds, *feedMeta) {
		m := &feedMeta{Meta: store.Meta()}
		f, err := OpenFeeds(ctx, store.DeadLetters(), m)
		if err != nil {
			t.Fatal(err)
		}
		return f, m
	}
	put := func(f *Feeds, caller string) {
		t.Helper()
		err := f.Put(ctx, []engine.DeadLetter{{ID: notify.ID{Base: notify.NewBase(time.Now())}, Caller: caller, State: engine.LetterDead, LastFailed: 7}})
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(f *Feeds, caller string, after uint64) {
		t.Helper()
		if ds, err := f.Feed(ctx, caller, after, 1); err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
	}
	a, between := open()
	b, _ := open()
	put(a, "x")
	put(b, "y")
	read(b, "x", 0)
	put(a, "z") // a knows nothing of what b served
	between.other = func() { put(b, "bank") }
	put(a, "shop")
	put(a, "x")
	between.other = func() { read(b, "x", 1) }
	read(a, "y", 0)
	between.other = func() { read(b, "shop", 0) }
	read(a, "z", 0)
	c, _ := open()
	if got, want := fmt.Sprint(c.seen), "map[bank:0 shop:1 x:2 y:1 z:1]"; got != want {
		t.Errorf("a third process knows %v, want %v", got, want)
	}
	if err := a.Join(ctx); err != nil || fmt.Sprint(a.seen) != fmt.Sprint(c.seen) {
		t.Errorf("the first process knows %v, want %v: %v", a.seen, c.seen, err)
	}
}
