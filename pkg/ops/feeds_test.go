package ops

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

// metaRows is engine.Meta over a map, which a test may break.
type metaRows struct {
	engine.Meta
	rows map[string][]byte
	err  error
}

func (m *metaRows) GetMeta(_ context.Context, name string) ([]byte, error) { return m.rows[name], nil }

func (m *metaRows) PutMeta(_ context.Context, name string, value []byte) error {
	if m.err == nil {
		m.rows[name] = value
	}
	return m.err
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
	store, meta := memory.New().DeadLetters(), &metaRows{rows: map[string][]byte{}}
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
	f, err := OpenFeeds(t.Context(), memory.New().DeadLetters(), &metaRows{rows: map[string][]byte{}})
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
	store, meta := memory.New().DeadLetters(), &metaRows{rows: map[string][]byte{}, err: errors.New("away")}
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

// TestFeedsOfTwoProcesses: what one has served and the other has stored are both
// known, whoever writes last.
func TestFeedsOfTwoProcesses(t *testing.T) {
	t.Parallel()
	ctx, store := t.Context(), memory.New()
	open := func() *Feeds {
		f, err := OpenFeeds(ctx, store.DeadLetters(), store.Meta())
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	letter := func(caller string) []engine.DeadLetter {
		return []engine.DeadLetter{{ID: notify.ID{Base: notify.NewBase(time.Now())}, Caller: caller, State: engine.LetterDead, LastFailed: 7}}
	}
	a, b := open(), open()
	if err := a.Put(ctx, letter("x")); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(ctx, letter("y")); err != nil {
		t.Fatal(err)
	}
	if ds, err := b.Feed(ctx, "x", 0, 10); err != nil || len(ds) != 1 {
		t.Fatal(ds, err)
	}
	if err := a.Put(ctx, letter("z")); err != nil { // a knows nothing of what b served
		t.Fatal(err)
	}
	c := open()
	if c.seen["x"] != 1 || len(c.Callers()) != 3 {
		t.Errorf("a third process knows %v", c.seen)
	}
}
