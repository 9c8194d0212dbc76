package cassandra

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// lone returns a store whose tables no other test uses.
func lone(t *testing.T) *Store {
	t.Helper()
	s := shared.take(t)
	for _, table := range []string{"triggers", "buckets", "listings", "timer_requests", "timer_heads", "logs", "records"} {
		if err := s.session.Query(`TRUNCATE ` + table).Exec(); err != nil {
			t.Fatal(err)
		}
	}
	s.forgetAll()
	t.Cleanup(func() {
		s.tidyBehind = tidyBehind
		shared.give(s)
	})
	return s
}

// batched runs statements of a list, each partition's together.
func batched(t *testing.T, s *Store, cql string, es []listEntry) {
	t.Helper()
	of := map[int64][]stmt{}
	for i := range es {
		e := &es[i]
		bucket, shard := listPart(e.part())
		of[e.part()] = append(of[e.part()], stmt{cql, []any{e.list, bucket, shard, e.key}})
	}
	var all [][]stmt
	for _, stmts := range of {
		all = append(all, slices.Collect(slices.Chunk(stmts, 500))...)
	}
	at := s.clock.now()
	if err := parallel(len(all), func(i int) error { return s.write(t.Context(), at, all[i]...) }); err != nil {
		t.Fatal(err)
	}
}

// A list of which more than 100,000 entries were removed a moment ago is read all
// the same: a caller that has 101,000 triggers end in ten minutes can still ask for
// the triggers that wait.
func TestListBehindTombstones(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes 200,000 rows")
	}
	s, ctx := lone(t), t.Context()
	hour := time.Now().Truncate(6 * time.Hour).Add(-12 * time.Hour)
	var gone []listEntry
	for i := range 101_000 {
		x := engine.Trigger{ID: "trg_" + notify.NewBase(hour.Add(time.Duration(i)*5*time.Millisecond)).String(), Caller: "shop", State: engine.TriggerPending}
		gone = append(gone, listEntries(listOpen, &x)[1])
	}
	batched(t, s, `INSERT INTO listings (list, bucket, shard, id) VALUES (?, ?, ?, ?)`, gone)
	batched(t, s, `DELETE FROM listings WHERE list = ? AND bucket = ? AND shard = ? AND id = ?`, gone)
	waits := trigger("shop")
	waits.ID = "trg_" + notify.NewBase(hour.Add(-time.Second)).String()
	if _, err := s.Triggers().Create(ctx, []engine.Trigger{waits}); err != nil {
		t.Fatal(err)
	}
	for shard := range int64(listShards) { // as enlist notes them
		if err := noteBucket(ctx, s, gone[0].list, listBucket(gone[0].ms)*listShards+shard, 0, false); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := s.Triggers().List(ctx, "shop", engine.TriggerPending, engine.TriggerCursor{}, 10)
	if err != nil || len(rows) != 1 || rows[0].ID != waits.ID {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	if n, err := s.Triggers().CountOpen(ctx, "shop", 10); err != nil || n != 1 {
		t.Errorf("%d wait, %v", n, err)
	}
}

// The notes of empty partitions must be removed, so that no list reads empty partitions: a
// busy caller has thousands of them in a month.
func TestEmptyPartsAreForgotten(t *testing.T) {
	t.Parallel()
	s, ctx := lone(t), t.Context()
	s.tidyBehind = 0
	var rows []engine.Trigger
	began := time.Now().Add(-31 * 24 * time.Hour)
	for i := range 40 {
		x := trigger("shop")
		x.ID = "trg_" + notify.NewBase(began.Add(time.Duration(i)*7*time.Minute)).String()
		rows = append(rows, x)
	}
	if _, err := s.Triggers().Create(ctx, rows); err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		rows[i].State, rows[i].Ended = engine.TriggerFired, began.UnixMilli()
	}
	var ss []engine.TriggerSwap
	for i := range rows {
		ss = append(ss, engine.TriggerSwap{Old: 1, New: rows[i]})
	}
	if _, err := s.Triggers().Swap(ctx, ss); err != nil {
		t.Fatal(err)
	}
	before := s.Counts()
	if n, err := s.Triggers().Purge(ctx, time.Now().UnixMilli(), 1000); err != nil || n != len(rows) {
		t.Fatalf("%d of %d are purged, %v", n, len(rows), err)
	}
	if c := s.Counts(); c.Swaps-before.Swaps != int64(len(rows)) || c.SerialReads != before.SerialReads {
		t.Errorf("a purge of %d triggers took %d swaps and %d serial reads", len(rows), c.Swaps-before.Swaps, c.SerialReads-before.SerialReads)
	}
	for _, scope := range []string{listTriggers, listTriggers + "/shop", listOpen, listOpen + "/shop", purgeOfTriggers} {
		if parts, err := readBuckets(ctx, s, scope, math.MinInt64, math.MaxInt64); err != nil || len(parts) > 0 {
			t.Errorf("%s: %d partitions are noted, %v", scope, len(parts), err)
		}
	}
}

// List must remove an entry of the open list whose row is not open, such as an entry that
// came back.
func TestAstrayEntriesAreStruck(t *testing.T) {
	t.Parallel()
	s, ctx := lone(t), t.Context()
	s.tidyBehind = 0
	x := trigger("shop")
	x.State, x.Ended = engine.TriggerFired, time.Now().UnixMilli()
	if _, err := s.Triggers().Create(ctx, []engine.Trigger{x}); err != nil {
		t.Fatal(err)
	}
	if err := addToList(ctx, s, 0, listEntries(listOpen, &x)...); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Triggers().CountOpen(ctx, "shop", 10); err != nil || n != 1 {
		t.Fatalf("%d entries, %v", n, err)
	}
	if rows, err := s.Triggers().List(ctx, "shop", engine.TriggerOpen, engine.TriggerCursor{}, 10); err != nil || len(rows) > 0 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if n, err := s.Triggers().CountOpen(ctx, "shop", 10); err != nil || n != 0 {
		t.Errorf("%d entries, %v", n, err)
	}
	// An entry whose row was purged by a process that died before it removed the entry.
	gone := trigger("bank")
	if err := addToList(ctx, s, 0, listEntries(listTriggers, &gone)...); err != nil {
		t.Fatal(err)
	}
	if rows, err := s.Triggers().List(ctx, "bank", 0, engine.TriggerCursor{}, 10); err != nil || len(rows) > 0 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if n, err := countListed(ctx, s, listOf(listTriggers, "bank"), 10); err != nil || n != 0 {
		t.Errorf("%d entries lead to no row, %v", n, err)
	}
}

// A note that ends early must not shorten a note that ends late: otherwise rows that live
// for a year could not be found any more.
func TestNotesAreNotShortened(t *testing.T) {
	t.Parallel()
	s, ctx := lone(t), t.Context()
	now := time.Now()
	for _, days := range []int{300, 3, 100} {
		s.forgetAll() // another process
		if err := noteBucket(ctx, s, "scope", 7, now.AddDate(0, 0, days).UnixMilli(), true); err != nil {
			t.Fatal(err)
		}
	}
	longest := 0
	err := s.rows(ctx, func(scan func(...any) bool) error {
		for keeps := int64(0); scan(&keeps); {
			longest = max(longest, int(time.UnixMilli(keeps).Sub(now)/(24*time.Hour)))
		}
		return nil
	}, `SELECT keeps FROM buckets WHERE scope = 'scope' AND n = 7`)
	if err != nil || longest < 299 {
		t.Errorf("it is kept for %d days, %v", longest, err)
	}
	if got, err := readBuckets(ctx, s, "scope", 0, 10); err != nil || fmt.Sprint(got) != "[7]" {
		t.Errorf("noted: %v, %v", got, err)
	}
}
