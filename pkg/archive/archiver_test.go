package archive

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)

// past is a history of one partition: record i is a chunk of one receiver.
type past struct {
	envs    []*notify.Envelope
	settled int64
	away    atomic.Bool
}

var part = history.Part{Topic: "notifications-sms", Partition: 3}

func (p *past) Settled(context.Context, int64) (map[history.Part]int64, error) {
	return map[history.Part]int64{part: p.settled}, nil
}

func (p *past) Range(_ context.Context, from, to map[history.Part]int64, fn func(*notify.Envelope) error) (int, error) {
	for i := from[part]; i < to[part]; i++ {
		if err := fn(p.envs[i]); err != nil {
			return 0, err
		}
	}
	if p.away.Load() {
		return 0, errors.New("away")
	}
	return 0, nil
}

type world struct {
	dir   string
	store *memory.Store
	past  *past
	meta  engine.Meta
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := memory.New()
	return &world{dir: filepath.Join(t.TempDir(), "archive"), store: s, past: &past{}, meta: s.Meta()}
}

func (w *world) open(t *testing.T, hit func(string)) *Archiver {
	t.Helper()
	a, err := Open(t.Context(), Config{
		Dir: w.dir, Letters: w.store.DeadLetters(), Callers: func() []string { return []string{"shop", "bank"} },
		History: w.past, Status: w.store.Status(), Meta: w.meta, hit: hit,
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func base(n int) notify.Base {
	b := notify.NewBase(t0)
	copy(b[6:], fmt.Sprintf("%010d", n))
	return b
}

// add makes n more dead letters of each caller and n more settled records.
func (w *world) add(t *testing.T, n int) {
	t.Helper()
	for range n {
		i := len(w.past.envs)
		for k, caller := range []string{"shop", "bank"} {
			d := engine.DeadLetter{
				ID: notify.ID{Base: base(2*i + k)}, Caller: caller, User: fmt.Sprint("user", i), Code: "c", State: "dead",
				LastFailed: t0.UnixMilli(), Until: t0.Add(30*24*time.Hour).UnixMilli() + int64(i),
			}
			if err := w.store.DeadLetters().Put(t.Context(), []engine.DeadLetter{d}); err != nil {
				t.Fatal(err)
			}
		}
		var rw notify.ReceiverWriter
		rw.Append(notify.Receiver{User: fmt.Appendf(nil, "user%d", i), Address: []byte("+1")})
		env := &notify.Envelope{
			Chunk: notify.Chunk{Base: base(i), Partition: 3}, Caller: "shop", Channel: notify.SMS, Category: notify.Alert, Accepted: t0.UnixMilli(),
			Count: 1, Receivers: rw.Bytes(),
		}
		w.past.envs = append(w.past.envs, env)
		w.past.settled++
		row := notify.Row{
			Key: env.Key(), Count: 1, Done: true, DoneUpTo: 1, StartedUpTo: 1, Updated: t0.UnixMilli() + 5,
			Default: notify.Exception{State: notify.Delivered},
		}
		if i%2 == 1 {
			row.Default = notify.Exception{State: notify.Failed, Code: "21211"}
		}
		if err := w.store.Status().Put(t.Context(), []notify.Row{row}); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *world) lines(t *testing.T, kind string) (out []map[string]any) {
	t.Helper()
	ms, err := List(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range ms {
		if err := Verify(w.dir, &ms[i]); err != nil {
			t.Error(err)
		}
		if ms[i].Kind != kind {
			continue
		}
		f, err := os.Open(filepath.Join(w.dir, ms[i].File))
		if err != nil {
			t.Fatal(err)
		}
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		for sc := bufio.NewScanner(z); sc.Scan(); {
			var m map[string]any
			if err := json.Unmarshal(sc.Bytes(), &m); err != nil {
				t.Fatal(err)
			}
			out = append(out, m)
		}
		z.Close()
		f.Close()
	}
	return out
}

// want checks that everything is in the archive once, in files that verify, and that the folder
// holds nothing else.
func (w *world) want(t *testing.T, n int) {
	t.Helper()
	var got, want []string
	for _, l := range w.lines(t, DeadLetters) {
		got = append(got, fmt.Sprint("letter ", l["caller"], " ", l["seq"]))
	}
	for _, l := range w.lines(t, Outcomes) {
		got = append(got, fmt.Sprint("outcome ", l["user_id"], " ", l["status"], " ", l["notification_id"]))
	}
	for i := range n {
		want = append(want, fmt.Sprint("letter shop ", i+1), fmt.Sprint("letter bank ", i+1))
		state := "DELIVERED"
		if i%2 == 1 {
			state = "FAILED"
		}
		want = append(want, fmt.Sprint("outcome user", i, " ", state, " ", notify.ID{Base: base(i)}))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d lines, want %d\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	if left, _ := filepath.Glob(filepath.Join(w.dir, "*"+tmpSuffix)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func once(t *testing.T, a *Archiver) {
	t.Helper()
	if err := a.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestArchivesOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(t, 1500) // more than a page
	a := w.open(t, nil)
	once(t, a)
	once(t, a) // nothing new: no file
	w.want(t, 1500)
	w.add(t, 10)
	once(t, w.open(t, nil))
	w.want(t, 1510)
	ms, err := List(w.dir)
	if err != nil || len(ms) != 4 || ms[0].Lines != 3000 || ms[1].Lines != 1500 || ms[2].Lines != 20 || ms[3].Number != 4 {
		t.Errorf("%+v, %v", ms, err)
	}
}

// TestRestoredStore continues with a store that is older than the folder. Existing files stay,
// and what the store does not know to be archived is written again.
func TestRestoredStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // within one hour
		w := newWorld(t)
		w.add(t, 3)
		a := w.open(t, nil)
		old, err := w.meta.GetMeta(t.Context(), metaKey)
		if err != nil {
			t.Fatal(err)
		}
		once(t, a)
		if err := w.meta.PutMeta(t.Context(), metaKey, old); err != nil {
			t.Fatal(err)
		}
		once(t, w.open(t, nil))
		if n := len(w.lines(t, DeadLetters)); n != 12 {
			t.Errorf("%d lines, not 6 twice", n)
		}
	})
}

// TestKilled dies at each step of each file, then goes on with more to archive:
// no line is left out, and none is there twice.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"archive-before-pending", "archive-before-name", "archive-named"} {
		for nth := 1; nth <= 2; nth++ {
			t.Run(fmt.Sprint(name, " ", nth), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.add(t, 7)
				a := w.open(t, nil)
				dieAt(t, a, name, nth)
				w.add(t, 5)
				// A process that is killed removes nothing.
				if err := os.WriteFile(filepath.Join(w.dir, "outcomes-00000099.tmp"), []byte("cut"), 0o600); err != nil {
					t.Fatal(err)
				}
				b := w.open(t, nil)
				once(t, b)
				w.want(t, 12)
				if got := b.Status(t.Context(), time.Now()); got.Err != nil || got.Files < 2 {
					t.Errorf("%+v", got)
				}
			})
		}
	}
}

// TestKilledBetweenNameAndManifest loses the manifest alone.
func TestKilledBetweenNameAndManifest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(t, 3)
	a := w.open(t, nil)
	a.cfg.hit = func(at string) {
		if at == "archive-named" {
			runtime.Goexit()
		}
	}
	killed := make(chan struct{})
	go func() { defer close(killed); _ = a.Once(t.Context()) }()
	<-killed
	ms, err := List(w.dir)
	if err != nil || len(ms) != 1 {
		t.Fatal(ms, err)
	}
	if err := os.Remove(filepath.Join(w.dir, ms[0].manifestName())); err != nil {
		t.Fatal(err)
	}
	once(t, w.open(t, nil))
	w.want(t, 3)
}

// metaThatFails refuses a write of the row.
type metaThatFails struct {
	engine.Meta
	at int // which write; counted down
}

func (m *metaThatFails) SwapMeta(ctx context.Context, name string, old, v []byte) (bool, error) {
	if m.at--; m.at == 0 {
		return false, errors.New("no disk")
	}
	return m.Meta.SwapMeta(ctx, name, old, v)
}

func TestStoreFails(t *testing.T) {
	t.Parallel()
	for nth := 2; nth <= 6; nth++ { // the first is Open's
		w := newWorld(t)
		w.add(t, 4)
		w.meta = &metaThatFails{w.meta, nth}
		a := w.open(t, nil)
		if err := a.Once(t.Context()); err == nil || a.Status(t.Context(), time.Now()).Err == nil {
			t.Errorf("write %d: no error", nth)
		}
		w.add(t, 2)
		once(t, a)
		w.want(t, 6)
	}
}

// A folder that cannot be written to is reported, and nothing is lost.
func TestFolderFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(t, 4)
	if err := os.WriteFile(w.dir, nil, 0o600); err != nil { // a file where the folder should be
		t.Fatal(err)
	}
	a := w.open(t, nil)
	if err := a.Once(t.Context()); notify.KindOf(err) != notify.KindUnavailable || a.Status(t.Context(), time.Now()).Err == nil {
		t.Errorf("%v", err)
	}
	if at := positionOf(t, a); at != 0 {
		t.Errorf("archived to %d", at)
	}
	if err := os.Remove(w.dir); err != nil {
		t.Fatal(err)
	}
	once(t, a)
	w.want(t, 4)
	if at := positionOf(t, a); at != 4 {
		t.Errorf("archived to %d", at)
	}
}

// Nothing is purged that is not archived, until the wait is over.
func TestPurgeWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(t, 3)
	a := w.open(t, nil)
	over := t0.Add(31 * 24 * time.Hour)
	purge := func(now time.Time) int {
		t.Helper()
		until, err := a.PurgeBefore(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		n, err := w.store.DeadLetters().Purge(t.Context(), until)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := purge(over); n != 0 {
		t.Errorf("%d purged that are not archived", n)
	}
	once(t, a)
	w.add(t, 1) // arrives late, its time over: the others go, it stays
	if n := purge(over); n != 6 {
		t.Errorf("%d purged, not 6", n)
	}
	if n := purge(over.Add(5 * 24 * time.Hour)); n != 0 {
		t.Errorf("%d purged that are not archived", n)
	}
	if n := purge(over.Add(7 * 24 * time.Hour)); n != 2 {
		t.Errorf("%d purged after the wait, not 2", n)
	}
}

func TestRunRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(t, 2)
		w.past.away.Store(true)
		a := w.open(t, nil)
		failed := 0
		a.cfg.Failed = func(error) { failed++ }
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if failed != 2 || a.Status(t.Context(), time.Now()).Err == nil || a.Status(t.Context(), time.Now()).Age != 90*time.Second {
			t.Errorf("%d failures, %+v", failed, a.Status(t.Context(), time.Now()))
		}
		w.past.away.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := a.Status(t.Context(), time.Now()); s.Err != nil || s.Age > time.Minute {
			t.Errorf("%+v", s)
		}
		w.want(t, 2)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestVerifyFinds changes a file and its manifest.
func TestVerifyFinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(t, 5)
	once(t, w.open(t, nil))
	ms, err := List(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	m := ms[0]
	m.Lines--
	if err := Verify(w.dir, &m); err == nil || !strings.Contains(err.Error(), "has 10 lines") {
		t.Errorf("%v", err)
	}
	name := filepath.Join(w.dir, m.File)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Verify(w.dir, &ms[0]); err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("%v", err)
	}
}

// die runs the archiver until it comes to a point, and kills it there.
func die(t *testing.T, a *Archiver, at string) {
	t.Helper()
	dieAt(t, a, at, 1)
}

// TestKilledBeforeTheFirstLetter dies over a file of outcomes when no dead letter
// has ever been archived: the row says nothing of letters then.
func TestKilledBeforeTheFirstLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(t, 2)
	letters := w.store
	w.store = memory.New() // with the outcomes alone
	for i := range w.past.envs {
		rows, err := letters.Status().Chunk(t.Context(), w.past.envs[i].Chunk)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.store.Status().Put(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
	}
	die(t, w.open(t, nil), "archive-before-name")
	d := engine.DeadLetter{ID: notify.ID{Base: base(7)}, Caller: "shop", State: "dead", LastFailed: t0.UnixMilli(), Until: t0.UnixMilli() + 1}
	if err := w.store.DeadLetters().Put(t.Context(), []engine.DeadLetter{d}); err != nil {
		t.Fatal(err)
	}
	b := w.open(t, nil)
	if until, err := b.PurgeBefore(t.Context(), t0.Add(time.Hour)); err != nil || until != t0.UnixMilli() {
		t.Errorf("purged to %d, %v", until, err)
	}
	once(t, b)
	if n, m := len(w.lines(t, Outcomes)), len(w.lines(t, DeadLetters)); n != 2 || m != 1 {
		t.Errorf("%d outcomes and %d dead letters", n, m)
	}
	once(t, w.open(t, nil))
}

// metaUnheard writes the row and returns an error, like a write whose context ends while the
// store commits it.
type metaUnheard struct {
	engine.Meta
	at int // which write; counted down
}

func (m *metaUnheard) SwapMeta(ctx context.Context, name string, old, v []byte) (bool, error) {
	won, err := m.Meta.SwapMeta(ctx, name, old, v)
	if m.at--; m.at == 0 {
		return false, context.Canceled
	}
	return won, err
}

// TestAnswerOfTheStoreIsLost goes on after a write of the row that was done and
// not answered, in the same process and in the next one.
func TestAnswerOfTheStoreIsLost(t *testing.T) {
	t.Parallel()
	for nth := 2; nth <= 6; nth++ { // the first is Open's
		for _, restart := range []bool{false, true} {
			w := newWorld(t)
			w.add(t, 4)
			w.meta = &metaUnheard{w.meta, nth}
			a := w.open(t, nil)
			if err := a.Once(t.Context()); err == nil {
				t.Errorf("write %d: no error", nth)
			}
			w.add(t, 2)
			if restart {
				a = w.open(t, nil)
			}
			once(t, a)
			w.want(t, 6)
		}
	}
}

// TestTakenAwayBeforeItWasNoted moves a file away that has its name, while the row
// does not know of that: the archive goes on, and its lines are there twice.
func TestTakenAwayBeforeItWasNoted(t *testing.T) {
	t.Parallel()
	for _, only := range []string{"data", "all"} {
		w := newWorld(t)
		w.add(t, 3)
		die(t, w.open(t, nil), "archive-named")
		ms, err := List(w.dir)
		if err != nil || len(ms) != 1 {
			t.Fatal(ms, err)
		}
		names := []string{ms[0].File}
		if only == "all" {
			names = append(names, ms[0].manifestName())
		}
		for _, name := range names {
			if err := os.Remove(filepath.Join(w.dir, filepath.FromSlash(name))); err != nil {
				t.Fatal(err)
			}
		}
		w.add(t, 1)
		b := w.open(t, nil)
		once(t, b)
		if only == "data" { // its manifest tells of it still
			if err := os.Remove(filepath.Join(w.dir, filepath.FromSlash(ms[0].manifestName()))); err != nil {
				t.Fatal(err)
			}
		}
		w.want(t, 4)
	}
}

// After a lost answer the row is read again. Files behind its position are not written again,
// wherever they are by then.
func TestAnswerIsLostAndTheFileTakenAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(t, 4)
	w.meta = &metaUnheard{w.meta, 3} // behind Open's and that of the pending letters: it moves on
	a := w.open(t, nil)
	if err := a.Once(t.Context()); err == nil || len(w.lines(t, DeadLetters)) != 8 {
		t.Fatal(err)
	}
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	once(t, a)
	if n, m := len(w.lines(t, Outcomes)), len(w.lines(t, DeadLetters)); n != 4 || m != 0 {
		t.Errorf("%d outcomes, and %d dead letters again", n, m)
	}
}

func positionOf(t *testing.T, a *Archiver) int64 {
	t.Helper()
	at, err := a.Positions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return at[part]
}

// together answers a call of Chunk once as many as it waits for were begun.
type together struct {
	engine.Status
	mu      sync.Mutex
	waits   int
	arrived []chan struct{}
	most    int
}

func (s *together) Chunk(ctx context.Context, c notify.Chunk) ([]notify.Row, error) {
	answer := make(chan struct{})
	s.mu.Lock()
	s.arrived = append(s.arrived, answer)
	s.most = max(s.most, len(s.arrived))
	if len(s.arrived) == s.waits {
		for _, ch := range s.arrived {
			close(ch)
		}
		s.arrived = nil
	}
	s.mu.Unlock()
	<-answer
	return s.Status.Chunk(ctx, c)
}

// TestReadsOutcomesTogether: the outcomes of chunksAtOnce chunks are read at the same time.
func TestReadsOutcomesTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // which notices that all wait
		w := newWorld(t)
		w.add(t, 2*chunksAtOnce)
		a := w.open(t, nil)
		status := &together{Status: a.cfg.Status, waits: chunksAtOnce}
		a.cfg.Status = status
		once(t, a)
		w.want(t, 2*chunksAtOnce)
		if status.most != chunksAtOnce {
			t.Errorf("%d at a time", status.most)
		}
	})
}
