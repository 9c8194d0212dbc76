package cassandra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type receiver struct {
	index uint32
	user  string
}

func envelope(at time.Time, caller string, rs ...receiver) *notify.Envelope {
	var w notify.ReceiverWriter
	for _, r := range rs {
		w.Append(notify.Receiver{Index: r.index, User: []byte(r.user), Address: []byte("addr-" + r.user)})
	}
	return &notify.Envelope{
		Chunk: notify.Chunk{Base: notify.NewBase(at), Partition: 3}, FanOut: len(rs) > 1, Caller: caller, Channel: notify.Push, Category: notify.Marketing,
		Accepted: at.UnixMilli(), Content: notify.Content{Title: "hi"}, Count: w.Count(), Receivers: w.Bytes(),
	}
}

func historyRecord(offset int64, e *notify.Envelope) HistoryRecord {
	return HistoryRecord{Topic: "notifications-push", Partition: 2, Offset: offset, Value: notify.AppendEnvelope(nil, e), Time: time.Now().UnixMilli()}
}

// withHistory gives a store whose tables of history are empty.
func withHistory(t testing.TB, everyReceiver bool) *Store {
	t.Helper()
	owner := shared.take(t)
	t.Cleanup(func() { shared.give(owner) })
	for _, table := range []string{"notification_chunks", "notification_content", "notifications", "history_offsets"} {
		if err := owner.session.Query(`TRUNCATE ` + table).Exec(); err != nil {
			t.Fatal(err)
		}
	}
	cfg := owner.cfg
	cfg.EveryReceiver = everyReceiver
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestRowsByUserGoTogether: rows of users, a partition each, are stored ten to a request, and
// each is found.
func TestRowsByUserGoTogether(t *testing.T) {
	t.Parallel()
	s := withHistory(t, true)
	var rs []receiver
	for i := range uint32(3*maxApart + 2) {
		rs = append(rs, receiver{i, fmt.Sprintf("user-%d", i)})
	}
	// A long name fills a request by its bytes.
	rs = append(rs, receiver{900, strings.Repeat("u", maxApartBytes-50)}, receiver{901, "last"})
	e := envelope(time.Now(), "shop", rs...)
	before := s.Counts()
	if err := s.AppendHistory(t.Context(), historyRecord(10, e)); err != nil {
		t.Fatal(err)
	}
	after := s.Counts()
	// Three of ten rows, one of two, one of the long name and one of the last; and those of
	// the chunk, its content and the offset.
	if n := after.Scattered + after.Writes - before.Scattered - before.Writes; n > 6+3 {
		t.Errorf("%d requests for %d rows of users", n, len(rs))
	}
	h := s.History(HistoryConfig{})
	for _, r := range rs {
		if got := userPages(t, h, engine.HistoryQuery{User: r.user, Limit: 10}); !slices.Equal(got, []string{e.ID(r.index).String()}) {
			t.Errorf("user %.10s got %v", r.user, got)
		}
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	s := withHistory(t, true)
	ctx := t.Context()
	h := s.History(HistoryConfig{})
	now := time.Now()
	fan := envelope(now.Add(-time.Minute), "shop", receiver{0, "ann"}, receiver{2, "bob"}, receiver{7, "cid"})
	rest := envelope(now, "shop", receiver{9, "dan"}, receiver{11, "ann"})
	rest.Chunk.Base, rest.Chunk.Block = fan.Chunk.Base, 1
	single := envelope(now.Add(-time.Second), "bank", receiver{0, "ann"})
	derived := envelope(now, "shop", receiver{0, "ann"})
	derived.Attempt = 1
	recs := []HistoryRecord{historyRecord(10, fan), historyRecord(11, single), historyRecord(12, derived), historyRecord(13, rest),
		{Topic: "notifications-push", Partition: 2, Offset: 14, Value: []byte("junk")}}
	for range 2 { // fed again: skipped
		if err := s.AppendHistory(ctx, recs...); err != nil {
			t.Fatal(err)
		}
	}
	offsets, err := s.HistoryOffsets(ctx)
	if err != nil || offsets[HistoryPart{"notifications-push", 2}] != 15 {
		t.Fatalf("offsets %v, %v", offsets, err)
	}
	var read []int64
	err = s.EachHistory(ctx, func(p HistoryPart, offset int64) bool {
		return p == HistoryPart{"notifications-push", 2} && offset > 10
	},
		func(f *engine.Found) error { read = append(read, f.Offset); return nil })
	if slices.Sort(read); err != nil || !slices.Equal(read, []int64{11, 13}) {
		t.Errorf("originals behind offset 10: %v, %v", read, err)
	}
	id := func(e *notify.Envelope, index uint32) notify.ID { return e.ID(index) }
	for _, c := range []struct {
		id     notify.ID
		user   string
		pos    uint32
		offset int64
	}{{id(fan, 2), "bob", 1, 10}, {id(single, 0), "ann", 0, 11}, {id(rest, 11), "ann", 1, 13}} {
		f, err := h.Find(ctx, c.id)
		if err != nil || f.ID != c.id || string(f.User) != c.user || string(f.Address) != "addr-"+c.user || f.Pos != c.pos || f.Offset != c.offset || f.LogPart != 2 || f.Topic != "notifications-push" || f.Envelope.Content.Title != "hi" {
			t.Errorf("%v: found %+v, %v", c.id, f, err)
		}
	}
	old := notify.NewBase(now.Add(-s.cfg.StatusTTL - time.Hour))
	for _, c := range []struct {
		id   notify.ID
		kind notify.Kind
	}{
		{notify.ID{Base: fan.Chunk.Base, Index: 1, FanOut: true}, notify.KindNotFound}, // a rejected item
		{notify.ID{Base: fan.Chunk.Base}, notify.KindNotFound},                         // the request, not a receiver
		{notify.ID{Base: derived.Chunk.Base}, notify.KindNotFound},
		{notify.ID{Base: old}, notify.KindGone},
	} {
		if _, err := h.Find(ctx, c.id); notify.KindOf(err) != c.kind {
			t.Errorf("%v: %v, want %v", c.id, err, c.kind)
		}
	}
	var each []string
	err = h.Each(ctx, fan.Chunk.Base, func(f *engine.Found) error {
		each = append(each, fmt.Sprintf("%d:%d:%s", f.ID.Index, f.Pos, f.User))
		return nil
	})
	if got := strings.Join(each, " "); err != nil || got != "0:0:ann 2:1:bob 7:2:cid 9:0:dan 11:1:ann" {
		t.Errorf("each gave %s, %v", got, err)
	}
	boom := errors.New("boom")
	if err := h.Each(ctx, fan.Chunk.Base, func(*engine.Found) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("each returned %v", err)
	}
	want := []string{id(single, 0).String(), id(rest, 11).String(), id(fan, 0).String()} // newest first
	for limit := 1; limit <= 4; limit++ {
		if got := userPages(t, h, engine.HistoryQuery{User: "ann", Limit: limit}); !slices.Equal(got, want) {
			t.Errorf("pages of %d: ann got %v, want %v", limit, got, want)
		}
	}
	if got := userPages(t, h, engine.HistoryQuery{User: "ann", Caller: "shop", Limit: 1}); !slices.Equal(got, want[1:]) {
		t.Errorf("ann got %v of the shop", got)
	}
	_, cursor, err := h.User(ctx, engine.HistoryQuery{User: "ann", Limit: 1})
	if err != nil || cursor == nil {
		t.Fatal(cursor, err)
	}
	if _, _, err := h.User(ctx, engine.HistoryQuery{User: "bob", Before: cursor, Limit: 1}); notify.KindOf(err) != notify.KindInvalid {
		t.Errorf("another user's cursor: %v", err)
	}
}

func userPages(t *testing.T, h *History, q engine.HistoryQuery) (ids []string) {
	t.Helper()
	for {
		page, next, err := h.User(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range page {
			if string(f.User) != q.User {
				t.Fatalf("listing of %s holds %s", q.User, f.User)
			}
			ids = append(ids, f.ID.String())
		}
		if q.Before = next; next == nil {
			return ids
		}
	}
}

// Without rows for each receiver a listing holds single sends alone; ids are
// found all the same.
func TestHistoryOfSingles(t *testing.T) {
	t.Parallel()
	s := withHistory(t, false)
	h := s.History(HistoryConfig{})
	fan, single := envelope(time.Now(), "shop", receiver{0, "eve"}, receiver{1, "bob"}), envelope(time.Now(), "shop", receiver{0, "eve"})
	if err := s.AppendHistory(t.Context(), historyRecord(0, fan), historyRecord(1, single)); err != nil {
		t.Fatal(err)
	}
	if got := userPages(t, h, engine.HistoryQuery{User: "eve", Limit: 10}); !slices.Equal(got, []string{single.ID(0).String()}) {
		t.Errorf("eve got %v", got)
	}
	if f, err := h.Find(t.Context(), fan.ID(1)); err != nil || string(f.User) != "bob" {
		t.Errorf("found %+v, %v", f, err)
	}
}

// Find waits for an id that is in the log but not yet in the history.
func TestHistoryWaitsAtTheBarrier(t *testing.T) {
	t.Parallel()
	s := withHistory(t, false)
	part := HistoryPart{"notifications-push", 2}
	asked := make(chan struct{})
	h := s.History(HistoryConfig{MaxWait: 2 * time.Minute, Barrier: func(context.Context) (map[HistoryPart]int64, error) {
		close(asked)
		return map[HistoryPart]int64{part: 6}, nil
	}})
	single := envelope(time.Now(), "shop", receiver{0, "eve"})
	go func() {
		<-asked // the miss has happened
		if err := s.AppendHistory(context.Background(), historyRecord(5, single)); err != nil {
			t.Error(err)
		}
	}()
	if f, err := h.Find(t.Context(), single.ID(0)); err != nil || string(f.User) != "eve" {
		t.Fatalf("found %+v, %v", f, err)
	}
	h = s.History(HistoryConfig{MaxWait: 100 * time.Millisecond, Barrier: func(context.Context) (map[HistoryPart]int64, error) {
		return map[HistoryPart]int64{part: 7}, nil
	}})
	if _, err := h.Find(t.Context(), notify.ID{Base: notify.NewBase(time.Now())}); notify.KindOf(err) != notify.KindUnavailable {
		t.Fatalf("an offset that never comes: %v", err)
	}
	// A partition whose log begins later.
	if err := s.AdvanceHistory(t.Context(), part, 7); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Find(t.Context(), notify.ID{Base: notify.NewBase(time.Now())}); notify.KindOf(err) != notify.KindNotFound {
		t.Fatalf("no such id: %v", err)
	}
}

// A notification that was scheduled months ahead is listed from its release on, at the place
// of that time. A cancelled one is listed from the cancellation on.
func TestHistoryOfWhatWasScheduledFarAhead(t *testing.T) {
	t.Parallel()
	s := withHistory(t, false)
	now := time.Now()
	day := 24 * time.Hour
	at := func(made time.Duration, due time.Time) *notify.Envelope {
		e := envelope(now.Add(-made), "shop", receiver{0, "ann"})
		if !due.IsZero() {
			e.NotBefore = due.UnixMilli()
		}
		return e
	}
	all := []*notify.Envelope{at(time.Minute, time.Time{}), at(100*day, now.Add(-time.Hour)), at(2*time.Hour, time.Time{}), at(300*day, now.Add(-20*day)), at(200*day, now.Add(60*day))}
	all[4].Cause = notify.CauseCancelled
	var recs []HistoryRecord
	for i, e := range all {
		recs = append(recs, historyRecord(int64(i), e))
	}
	if err := s.AppendHistory(t.Context(), recs...); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, i := range []int{4, 0, 1, 2, 3} {
		want = append(want, all[i].ID(0).String())
	}
	for limit := 1; limit <= 6; limit++ {
		if got := userPages(t, s.History(HistoryConfig{}), engine.HistoryQuery{User: "ann", Limit: limit}); !slices.Equal(got, want) {
			t.Errorf("pages of %d: %v, want %v", limit, got, want)
		}
	}
}

// Rows by user are made a few at a time, however many receivers a record has, and each is
// made once.
func TestRowsByUserAreMadeAFewAtATime(t *testing.T) {
	t.Parallel()
	const large = 2*usersAtOnce + 10
	var rs []receiver
	for i := range uint32(large) {
		rs = append(rs, receiver{3 * i, fmt.Sprint("user", i)})
	}
	rs[5].user = "" // an address alone
	seen, most := map[int64]int{}, 0
	users := userRows{store: func(rows []stmt) error {
		most = max(most, len(rows))
		for _, r := range rows {
			seen[r.args[4].(int64)]++
			if pos := r.args[8].(int64); 3*pos != r.args[4].(int64) || string(r.args[0].([]byte)) != fmt.Sprint("user", pos) {
				t.Errorf("a row of %s at %d has the index %d", r.args[0], pos, r.args[4])
			}
		}
		return nil
	}}
	for range 2 {
		if err := users.add(&original{env: *envelope(time.Now(), "shop", rs...), releasedAt: 1, ttlSeconds: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := users.flush(); err != nil {
		t.Fatal(err)
	}
	if most != usersAtOnce || len(seen) != large-1 {
		t.Errorf("%d rows at a time, rows of %d receivers", most, len(seen))
	}
	for index, n := range seen {
		if n != 2 {
			t.Fatalf("%d rows of the index %d", n, index)
		}
	}
	broken := errors.New("broken")
	users.store = func([]stmt) error { return broken }
	if err := users.add(&original{env: *envelope(time.Now(), "shop", rs...)}); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
