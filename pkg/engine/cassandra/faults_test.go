package cassandra

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// line is the connection to the node. It can be cut, as if the node had died. It can also
// drop one answer: the node applies the request, but the client gets no answer.
type line struct {
	mu    sync.Mutex
	conns map[net.Conn]bool
	down  atomic.Bool
	// armed: the next request that holds this text is sent, and its connection cut.
	armed   atomic.Pointer[string]
	swallow atomic.Int32 // how many were
}

func (l *line) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if l.down.Load() {
		return nil, errors.New("the line is cut")
	}
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		l.conns = map[net.Conn]bool{}
	}
	l.conns[c] = true
	return &lineConn{Conn: c, l: l}, nil
}

func (l *line) cut() {
	l.down.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
	l.conns = nil
}

func (l *line) mend() { l.down.Store(false) }

type lineConn struct {
	net.Conn
	l    *line
	deaf atomic.Bool
}

func (c *lineConn) Write(b []byte) (int, error) {
	if text := c.l.armed.Load(); text != nil && strings.Contains(string(b), *text) && c.l.armed.CompareAndSwap(text, nil) {
		c.deaf.Store(true)
		c.l.swallow.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *lineConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.deaf.Load() {
		c.Close()
		return 0, errors.New("the answer was lost")
	}
	return n, err
}

// through opens a store of a keyspace whose line can be cut.
func through(t *testing.T, cfg Config) (*Store, *line) {
	t.Helper()
	l := &line{}
	cfg.dialer = l
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, l
}

func trigger(id string) engine.Trigger {
	return engine.Trigger{ID: "trg_" + notify.NewBase(time.Now()).String(), Caller: id, URL: "https://shop.example/", Payload: []byte("{}"), State: engine.TriggerPending, FireAt: 1, NextAt: 1}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after 2 minutes", what)
		}
	}
}

func TestNodeThatIsGone(t *testing.T) {
	t.Parallel()
	owner := shared.take(t)
	defer shared.give(owner)
	cfg := owner.cfg
	cfg.Timeout = 5 * time.Second
	s, l := through(t, cfg)
	row := notify.Row{Key: notify.RowKey{Chunk: notify.Chunk{Base: notify.NewBase(time.Now())}}, Count: 1}
	if err := s.Status().Put(t.Context(), []notify.Row{row}); err != nil {
		t.Fatal(err)
	}
	l.cut()
	for name, call := range map[string]func() error{
		"write":  func() error { return s.Status().Put(t.Context(), []notify.Row{row}) },
		"read":   func() error { _, err := s.Status().Get(t.Context(), []notify.RowKey{row.Key}); return err },
		"swap":   func() error { _, err := s.Triggers().Create(t.Context(), []engine.Trigger{trigger("a")}); return err },
		"serial": func() error { _, err := s.Timers().Shard(t.Context(), 1); return err },
	} {
		start := time.Now()
		err := call()
		if notify.KindOf(err) != notify.KindUnavailable || notify.RetryAfterOf(err) == 0 {
			t.Errorf("%s while the node is gone: %v, kind %v", name, err, notify.KindOf(err))
		}
		// Twice the timeout, for the retry, and as much again for a busy machine.
		if took := time.Since(start); took > 4*cfg.Timeout {
			t.Errorf("%s took %s to fail", name, took)
		}
	}
	l.mend()
	eventually(t, "the store works again", func() bool {
		got, err := s.Status().Get(t.Context(), []notify.RowKey{row.Key})
		return err == nil && got[0].Key == row.Key && s.Status().Put(t.Context(), []notify.Row{row}) == nil
	})
}

// If the answer of a swap is lost, the process must find out that the swap was applied.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	owner := shared.take(t)
	defer shared.give(owner)
	s, l := through(t, owner.cfg)
	lose := func(text string, ready func() error) {
		t.Helper()
		eventually(t, "a connection", func() bool { return ready() == nil })
		l.armed.Store(&text)
	}
	ts := s.Triggers()
	x := trigger("shop")
	x.URL = "https://shop.example/" + marker
	if _, err := ts.Create(t.Context(), []engine.Trigger{x}); err != nil {
		t.Fatal(err)
	}
	for v := range uint64(6) {
		lose(marker, func() error { _, err := ts.Get(t.Context(), []string{x.ID}); return err })
		x.Reason = marker
		x.Attempts = int(v)
		won, err := ts.Swap(t.Context(), []engine.TriggerSwap{{Old: v + 1, New: x}})
		if err != nil || !won[0] {
			t.Fatalf("swap of version %d: %v, %v", v+1, won, err)
		}
		got, err := ts.Get(t.Context(), []string{x.ID})
		if err != nil || got[0].Version != v+2 || got[0].Attempts != int(v) {
			t.Fatalf("after the swap of version %d: %+v, %v", v+1, got, err)
		}
	}
	shards := s.Timers()
	was, err := shards.Shard(t.Context(), 77)
	if err != nil {
		t.Fatal(err)
	}
	for term := was.Term; term < was.Term+4; term++ {
		lose(marker, func() error { _, err := shards.Shard(t.Context(), 77); return err })
		st, err := shards.TakeOver(t.Context(), 77, term, marker)
		if err != nil || st.Term != term+1 {
			t.Fatalf("take-over of term %d: %+v, %v", term, st, err)
		}
	}
	last, err := s.Audit().Last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for seq := last.Seq; seq < last.Seq+4; seq++ {
		lose(base64.StdEncoding.EncodeToString([]byte(marker)), func() error { _, err := s.Audit().Last(t.Context()); return err })
		row, err := s.Audit().Append(t.Context(), func(last engine.AuditRow) (engine.AuditRow, error) {
			return engine.AuditRow{Hash: []byte{byte(last.Seq)}, Doc: []byte(marker)}, nil
		})
		if err != nil || row.Seq != seq+1 {
			t.Fatalf("row %d: %+v, %v", seq+1, row, err)
		}
	}
	if n := l.swallow.Load(); n < 14 {
		t.Fatalf("%d answers were lost, not 14: the test tests nothing", n)
	}
}

// For every kind of swapped row, reading it back must show that a swap whose answer was lost
// was applied.
func TestLostAnswersOfEverySwap(t *testing.T) {
	t.Parallel()
	s, l := through(t, lone(t).cfg)
	ctx, now := t.Context(), time.Now()
	id, name := fmt.Sprint("job-", now.UnixNano()), fmt.Sprint("name-", now.UnixNano())
	topic, scope := fmt.Sprint("topic-", now.UnixNano()), fmt.Sprint("ntf_", now.UnixNano())
	head := engine.ScheduleHead{Base: notify.NewBase(now), FireAt: now.UnixMilli()}
	letter := engine.DeadLetter{ID: notify.ID{Base: notify.NewBase(now)}, Caller: scope, State: engine.LetterDead, LastFailed: 1, Until: now.Add(time.Hour).UnixMilli()}
	x, j := trigger(scope), engine.Job{ID: id, Kind: "replay", Name: name}
	x.State, x.Ended = engine.TriggerFailed, 5
	// A value of a request follows its length, 4 bytes; a number has 8 bytes.
	const eight = "\x00\x00\x00\x08"
	sized := func(v string) string { return string(binary.BigEndian.AppendUint32(nil, uint32(len(v)))) + v }
	num := func(n int64) string { return eight + string(binary.BigEndian.AppendUint64(nil, uint64(n))) }
	var tenure engine.Tenure
	for _, step := range []struct {
		what string
		text string // of the request whose answer is lost: nothing but the swap has it
		call func() error
		want int64 // what seen returns then; 0: the call alone says that all is well
		seen func() (int64, error)
	}{
		{"a head is made", num(head.FireAt), func() error {
			_, won, err := s.Schedules().Swap(ctx, 0, head)
			return wonOr(won, err)
		}, 1, func() (int64, error) {
			h, _, err := s.Schedules().Head(ctx, head.Base)
			return int64(h.Version), err
		}},
		{"a head is removed", sized(string(head.Base[:])) + num(1), func() error {
			_, err := s.Schedules().Purge(ctx, head.FireAt+1, 10)
			return err
		}, 0, nil},
		{"a letter is made", sized(string(store.LetterID(letter.ID, 0))) + sized(letter.State), func() error {
			return s.DeadLetters().Put(ctx, []engine.DeadLetter{letter})
		}, 1, func() (int64, error) {
			d, err := s.DeadLetters().Get(ctx, letter.ID, 0)
			return int64(d.Seq), err
		}},
		{"a scope is cancelled", sized(scope) + eight, func() error {
			_, err := s.Cancels().Put(ctx, engine.Cancel{Scope: scope})
			return err
		}, 0, nil},
		{"a tenure begins", sized(topic) + sized("\x00\x00\x00\x03") + "\xff\xff\xff\xff", func() (err error) {
			tenure, err = s.Status().TakeOver(ctx, topic, 3)
			return err
		}, 0, nil},
		{"a tenure follows", sized(topic) + sized("\x00\x00\x00\x03") + eight, func() error {
			next, err := s.Status().TakeOver(ctx, topic, 3)
			if err == nil && next.Before != tenure.Start {
				err = fmt.Errorf("the tenure %+v follows %+v", next, tenure)
			}
			return err
		}, 0, nil},
		{"a job is made", `"Version":1}`, func() error {
			_, won, err := s.Jobs().Create(ctx, j)
			return wonOr(won, err)
		}, 0, nil},
		{"a job is put", `"Version":2}`, func() error {
			_, err := s.Jobs().Put(ctx, engine.Job{ID: id, Version: 1})
			return err
		}, 2, func() (int64, error) {
			j, _, err := s.Jobs().Get(ctx, id)
			return int64(j.Version), err
		}},
		{"a job is dropped", `"Version":2}`, func() error { return s.Jobs().Drop(ctx, id, 2) }, 0, nil},
		{"a trigger is purged", sized(x.ID) + num(1), func() error {
			if _, err := s.Triggers().Create(ctx, []engine.Trigger{x}); err != nil {
				return err
			}
			n, err := s.Triggers().Purge(ctx, 10, 10)
			return wonOr(n == 1, err)
		}, 0, nil},
		{"a part of a campaign is counted", `"Accepted":7`, func() error {
			return s.Campaigns().AddPart(ctx, scope, "shop", 1, head.Base, 7, 0, 1)
		}, 7, func() (int64, error) {
			c, _, err := s.Campaigns().Get(ctx, scope)
			return c.Accepted, err
		}},
		{"a name of meta is made", sized("first"), func() error {
			won, err := s.Meta().SwapMeta(ctx, scope, nil, []byte("first"))
			return wonOr(won, err)
		}, 0, nil},
		{"a name of meta changes", sized("second"), func() error {
			won, err := s.Meta().SwapMeta(ctx, scope, []byte("first"), []byte("second"))
			return wonOr(won, err)
		}, 0, nil},
	} {
		eventually(t, "a connection", func() bool { _, err := s.Audit().Last(ctx); return err == nil })
		before := l.swallow.Load()
		l.armed.Store(&step.text)
		if err := step.call(); err != nil {
			t.Errorf("%s: %v", step.what, err)
		} else if l.swallow.Load() == before {
			t.Errorf("%s: no answer was lost", step.what)
		} else if step.seen != nil {
			if n, err := step.seen(); err != nil || n != step.want {
				t.Errorf("%s: it is %d, not %d, %v", step.what, n, step.want, err)
			}
		}
	}
}

func wonOr(won bool, err error) error {
	if err == nil && !won {
		err = errors.New("it was not won")
	}
	return err
}

const marker = "an-answer-to-be-lost"

// Each of several processes must find out what became of a swap whose answer was lost, also
// while others swap the same row.
func TestLostAnswersAmongOthers(t *testing.T) {
	t.Parallel()
	owner := shared.take(t)
	defer shared.give(owner)
	const writers, wins = 3, 8
	x := trigger("shop")
	if _, err := owner.Triggers().Create(t.Context(), []engine.Trigger{x}); err != nil {
		t.Fatal(err)
	}
	var unknowns, sum atomic.Int64
	var wg sync.WaitGroup
	for i := range writers {
		s, l := through(t, owner.cfg)
		wg.Go(func() {
			for n := 0; n < wins; {
				rows, err := s.Triggers().Get(context.Background(), []string{x.ID})
				if err != nil {
					continue // the line comes back
				}
				row := rows[0]
				row.Attempts++
				row.Reason = marker
				if n%2 == i%2 {
					text := marker
					l.armed.Store(&text)
				}
				won, err := s.Triggers().Swap(context.Background(), []engine.TriggerSwap{{Old: rows[0].Version, New: row}})
				switch {
				case err != nil:
					unknowns.Add(1)
					n++
				case won[0]:
					sum.Add(1)
					n++
				}
			}
		})
	}
	wg.Wait()
	got, err := owner.Triggers().Get(t.Context(), []string{x.ID})
	if err != nil {
		t.Fatal(err)
	}
	swaps := int64(got[0].Attempts)
	if uint64(swaps+1) != got[0].Version || swaps < sum.Load() || swaps > sum.Load()+unknowns.Load() {
		t.Fatalf("version %d, %d swaps, %d were won and of %d nobody knows", got[0].Version, swaps, sum.Load(), unknowns.Load())
	}
	t.Logf("%d swaps won, %d unknown", sum.Load(), unknowns.Load())
}

// A process that reads a row and then replaces it must win, whatever its clock says.
func TestClockBehindAnother(t *testing.T) {
	t.Parallel()
	ahead := shared.take(t)
	defer shared.give(ahead)
	behind, err := Open(t.Context(), ahead.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Close()
	ahead.clock.last.Store(time.Now().Add(time.Hour).UnixMicro())
	key := notify.RowKey{Chunk: notify.Chunk{Base: notify.NewBase(time.Now())}}
	ctx := t.Context()
	put := func(s *Store, count uint32) {
		t.Helper()
		if err := s.Status().Put(ctx, []notify.Row{{Key: key, Count: count}}); err != nil {
			t.Fatal(err)
		}
	}
	get := func(s *Store) uint32 {
		t.Helper()
		rows, err := s.Status().Get(ctx, []notify.RowKey{key})
		if err != nil {
			t.Fatal(err)
		}
		return rows[0].Count
	}
	put(ahead, 1)
	if get(behind) != 1 {
		t.Fatal("not stored")
	}
	put(behind, 2)
	if n := get(ahead); n != 2 {
		t.Fatalf("count %d: the write of the slower clock was lost", n)
	}
	ahead.clock.last.Store(0)
}

func TestBudget(t *testing.T) {
	t.Parallel()
	s := shared.take(t)
	defer shared.give(s)
	const fires = 20
	caller := fmt.Sprint("shop-", time.Now().UnixNano()) // other tests use the tables too
	ts := s.Triggers()
	var xs []engine.Trigger
	for range fires {
		xs = append(xs, trigger(caller))
	}
	before := s.Counts()
	if _, err := ts.Create(t.Context(), xs); err != nil {
		t.Fatal(err)
	}
	created := s.Counts()
	for _, x := range xs {
		rows, err := ts.Get(t.Context(), []string{x.ID}) // as the dispatcher does
		if err != nil {
			t.Fatal(err)
		}
		row := rows[0]
		for v, state := range []engine.TriggerState{engine.TriggerInFlight, engine.TriggerFired} {
			row.State = state
			if state == engine.TriggerFired {
				row.Ended = time.Now().UnixMilli()
			}
			won, err := ts.Swap(t.Context(), []engine.TriggerSwap{{Old: uint64(v + 1), New: row}})
			if err != nil || !won[0] {
				t.Fatal(won, err)
			}
		}
	}
	after := s.Counts()
	per := func(a, b int64) float64 { return float64(b-a) / fires }
	create, fire := per(before.Swaps, created.Swaps), per(created.Swaps, after.Swaps)
	serial, reads, writes := per(created.SerialReads, after.SerialReads), per(created.Reads, after.Reads), per(created.Writes, after.Writes)
	t.Logf("a create: %.2f swaps; a fire: %.2f swaps, %.2f serial reads, %.2f reads, %.2f writes", create, fire, serial, reads, writes)
	if create > 1.05 || fire > 2.1 || serial > 0.1 || reads > 1.1 || writes > 4 {
		t.Error("over the budget")
	}
	// Open triggers are listed without reading the ended ones.
	parts, err := readBuckets(t.Context(), s, listOf(listOpen, caller), math.MinInt64, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	before = s.Counts()
	if rows, err := ts.List(t.Context(), caller, engine.TriggerPending, engine.TriggerCursor{}, 10); err != nil || len(rows) != 0 {
		t.Fatal(rows, err)
	}
	if n := s.Counts().Reads - before.Reads - int64(1+len(parts)); n > 0 {
		t.Errorf("%d rows that ended were read to list the living", n)
	}
}

func TestStatusOfManyRequests(t *testing.T) {
	t.Parallel()
	s := shared.take(t)
	defer shared.give(s)
	var rows []notify.Row
	for range 300 {
		rows = append(rows, notify.Row{Key: notify.RowKey{Chunk: notify.Chunk{Base: notify.NewBase(time.Now())}}, Count: 1, Topic: "t"})
	}
	if err := s.Status().Put(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	before := s.Counts()
	if err := s.Status().Put(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	// The rows of a partition are one write, and the minutes are known from the first call.
	if n := s.Counts().Writes - before.Writes; n > 2*statusShards {
		t.Errorf("%d writes for 300 rows of two minutes at most", n)
	}
}

// A row that ended and was opened again must not be purged by its old end. A row that ended
// again must be purged only by its new end.
func TestPurgeLeavesWhatLivesAgain(t *testing.T) {
	t.Parallel()
	s := shared.take(t)
	defer shared.give(s)
	ts := s.Triggers()
	live, later := trigger("shop"), trigger("shop")
	live.State, live.Ended = engine.TriggerFailed, 1_000_000_000
	later.State, later.Ended = engine.TriggerFailed, 1_000_000_000
	if _, err := ts.Create(t.Context(), []engine.Trigger{live, later}); err != nil {
		t.Fatal(err)
	}
	live.State, live.Ended, later.Ended = engine.TriggerPending, 0, 2_000_000_000
	won, err := ts.Swap(t.Context(), []engine.TriggerSwap{{Old: 1, New: live}, {Old: 1, New: later}})
	if err != nil || !won[0] || !won[1] {
		t.Fatal(won, err)
	}
	if n, err := ts.Purge(t.Context(), 1_500_000_000, 100); err != nil || n != 0 {
		t.Errorf("purged %d, %v", n, err)
	}
	if rows, err := ts.List(t.Context(), "shop", engine.TriggerPending, engine.TriggerCursor{}, 1000); err != nil || !slices.ContainsFunc(rows, func(x engine.Trigger) bool { return x.ID == live.ID }) {
		t.Errorf("what lives again is not listed: %v", err)
	}
	if n, err := ts.Purge(t.Context(), 2_500_000_000, 100); err != nil || n != 1 {
		t.Errorf("purged %d behind the new end, %v", n, err)
	}
	if rows, err := ts.Get(t.Context(), []string{live.ID, later.ID}); err != nil || rows[0].ID == "" || rows[1].ID != "" {
		t.Errorf("left: %+v, %v", rows, err)
	}
}

// A Put that is interrupted after it appended to the logs leaves rows there without a dead
// letter. The next Put of the same dead letter gives it other numbers, and Walk and Feed
// return it once.
func TestInterruptedPutOfADeadLetter(t *testing.T) {
	t.Parallel()
	s := shared.take(t)
	defer shared.give(s)
	l := s.DeadLetters().(deadLetters)
	ctx := t.Context()
	before, err := l.Last(ctx)
	if err != nil {
		t.Fatal(err)
	}
	d := engine.DeadLetter{ID: notify.ID{Base: notify.NewBase(time.Now())}, Epoch: 1, Caller: fmt.Sprint("shop-", time.Now().UnixNano()), State: engine.LetterDead, LastFailed: time.Now().UnixMilli(), Until: time.Now().Add(time.Hour).UnixMilli()}
	id := store.LetterID(d.ID, d.Epoch)
	if _, err := l.create(ctx, id, &d); err != nil {
		t.Fatal(err)
	}
	for _, log := range []numbered{l.log, l.feed(d.Caller)} {
		if _, _, err := log.appendRows(ctx, func(logRow, int) ([][]byte, error) { return [][]byte{id}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Get(ctx, d.ID, d.Epoch); notify.KindOf(err) != notify.KindNotFound {
		t.Errorf("a letter whose Put is not done: %v", err)
	}
	if err := l.Put(ctx, []engine.DeadLetter{d}); err != nil {
		t.Fatal(err)
	}
	got, err := l.Get(ctx, d.ID, d.Epoch)
	if err != nil || got.Seq != 2 || got.Ord != before+2 {
		t.Errorf("the letter is %+v, %v", got, err)
	}
	if feed, err := l.Feed(ctx, d.Caller, 0, 10); err != nil || len(feed) != 1 || feed[0].Seq != 2 {
		t.Errorf("fed %+v, %v", feed, err)
	}
	walked := 0
	err = l.Walk(ctx, before, before+2, func(d *engine.DeadLetter) error { walked++; return nil })
	if err != nil || walked != 1 {
		t.Errorf("walked %d times, %v", walked, err)
	}
}
