package outcomehook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trigger"
)

var discard = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)

func letter(n int, caller string) engine.DeadLetter {
	b := notify.NewBase(t0)
	copy(b[6:], fmt.Sprintf("%04.4s%06d", caller, n))
	return engine.DeadLetter{
		ID: notify.ID{Base: b, Index: uint32(n)}, Caller: caller, Channel: "sms", Category: "otp", User: fmt.Sprint("user", n),
		Class: "permanent", Code: "21211", Provider: "twilio", Attempts: 1, LastFailed: t0.UnixMilli() + int64(n), Until: t0.UnixMilli() + 1<<40, State: "dead",
	}
}

// world is stores that outlive the Tellers that run on them.
type world struct {
	store *memory.Store
	feeds map[string]int // calls of Feed by caller
	meta  map[string]int // writes
	made  []engine.Trigger
	// refuse holds, by caller, the error that a trigger gets.
	refuse map[string]error
}

func newWorld(t *testing.T, callers ...engine.Caller) *world {
	t.Helper()
	w := &world{store: memory.New(), feeds: map[string]int{}, meta: map[string]int{}, refuse: map[string]error{}}
	for _, c := range callers {
		if err := w.store.Callers().Put(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) RegisterInternal(_ context.Context, caller string, base notify.Base, url string, payload []byte, trace string) (engine.Trigger, bool, error) {
	if err := w.refuse[caller]; err != nil {
		return engine.Trigger{}, false, err
	}
	for _, row := range w.made {
		if row.ID == base.String() {
			return row, false, nil
		}
	}
	row := engine.Trigger{ID: base.String(), Caller: caller, URL: url, Payload: slices.Clone(payload), Trace: trace}
	w.made = append(w.made, row)
	return row, true, nil
}

type countedLetters struct {
	engine.DeadLetters
	w *world
}

func (c countedLetters) Feed(ctx context.Context, caller string, after uint64, max int) ([]engine.DeadLetter, error) {
	c.w.feeds[caller]++
	return c.DeadLetters.Feed(ctx, caller, after, max)
}

type countedMeta struct {
	engine.Meta
	w *world
}

func (c countedMeta) PutMeta(ctx context.Context, name string, v []byte) error {
	c.w.meta[name]++
	return c.Meta.PutMeta(ctx, name, v)
}

func (w *world) teller(t *testing.T, hit func(string)) *Teller {
	t.Helper()
	x, err := New(Config{Letters: countedLetters{w.store.DeadLetters(), w}, Callers: w.store.Callers(), Meta: countedMeta{w.store.Meta(), w}, Triggers: w, hit: hit})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (w *world) fail(t *testing.T, caller string, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		if err := w.store.DeadLetters().Put(t.Context(), []engine.DeadLetter{letter(n, caller)}); err != nil {
			t.Fatal(err)
		}
	}
}

// told returns the sequence numbers in a caller's triggers, in order, and the number in each
// trigger.
func (w *world) told(t *testing.T, caller string) (seqs []uint64, sizes []int) {
	t.Helper()
	for _, row := range w.made {
		if row.Caller != caller {
			continue
		}
		var p Payload
		if err := json.Unmarshal(row.Payload, &p); err != nil {
			t.Fatal(err)
		}
		if p.Type != Type || p.Caller != caller || p.Last != p.Outcomes[len(p.Outcomes)-1].Seq {
			t.Errorf("%+v", p)
		}
		sizes = append(sizes, len(p.Outcomes))
		for _, o := range p.Outcomes {
			if o.Status != "FAILED" || o.User != fmt.Sprint("user", o.Seq-1) || o.Code != "21211" {
				t.Errorf("%+v", o)
			}
			seqs = append(seqs, o.Seq)
		}
	}
	return seqs, sizes
}

func (w *world) wantTold(t *testing.T, caller string, from, to uint64) {
	t.Helper()
	seqs, _ := w.told(t, caller)
	var want []uint64
	for s := from; s <= to; s++ {
		want = append(want, s)
	}
	if !slices.Equal(seqs, want) {
		t.Errorf("told of %v, want %d to %d, each once", seqs, from, to)
	}
}

func shop(id string) engine.Caller {
	return engine.Caller{ID: id, OutcomesURL: "https://shop.example/failed"}
}

func TestTellsInBatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shop("shop"), shop("bank"), engine.Caller{ID: "quiet"}, engine.Caller{ID: "off", OutcomesURL: "https://x.example/", Disabled: true})
	w.fail(t, "shop", 0, 250)
	w.fail(t, "quiet", 0, 5)
	w.fail(t, "off", 0, 5)
	x := w.teller(t, nil)
	x.tellAllCallers(t.Context())
	w.wantTold(t, "shop", 1, 250)
	if _, sizes := w.told(t, "shop"); !slices.Equal(sizes, []int{100, 100, 50}) {
		t.Errorf("triggers of %v", sizes)
	}
	// A caller without a URL costs nothing: no look at its feed, no row.
	if w.feeds["quiet"] != 0 || w.meta[lastToldKey("quiet")] != 0 || w.feeds["off"] != 0 || len(w.made) != 3 {
		t.Errorf("feeds read %v, rows written %v, %d triggers", w.feeds, w.meta, len(w.made))
	}
	w.fail(t, "shop", 250, 251)
	w.teller(t, nil).tellAllCallers(t.Context()) // another process goes on where this one was
	w.wantTold(t, "shop", 1, 251)
}

// A payload stays below its bound, whatever it contains. The dead letter of a notification that
// may have arrived is told as UNKNOWN.
func TestTellsOfUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shop("shop"))
	d := letter(0, "shop")
	d.Class = notify.ClassAmbiguous.String()
	if err := w.store.DeadLetters().Put(t.Context(), []engine.DeadLetter{d}); err != nil {
		t.Fatal(err)
	}
	w.teller(t, nil).tellAllCallers(t.Context())
	var p Payload
	if len(w.made) != 1 || json.Unmarshal(w.made[0].Payload, &p) != nil || p.Outcomes[0].Status != "UNKNOWN" {
		t.Errorf("%+v", p)
	}
}

func TestPayloadIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shop("shop"))
	var ds []engine.DeadLetter
	for n := range 100 {
		d := letter(n, "shop")
		d.User, d.Template, d.Code = strings.Repeat("ü", 128), strings.Repeat("<", 128), strings.Repeat("c", 64)
		ds = append(ds, d)
	}
	if err := w.store.DeadLetters().Put(t.Context(), ds); err != nil {
		t.Fatal(err)
	}
	w.teller(t, nil).tellAllCallers(t.Context())
	n := 0
	for _, row := range w.made {
		var p Payload
		if err := json.Unmarshal(row.Payload, &p); err != nil || len(row.Payload) > trigger.MaxOwnPayload {
			t.Fatalf("%d bytes, %v", len(row.Payload), err)
		}
		n += len(p.Outcomes)
	}
	if n != 100 || len(w.made) < 2 {
		t.Errorf("%d failures in %d triggers", n, len(w.made))
	}
}

// TestKilledBeforeTheCursor crashes between the trigger and the row with the position, and adds
// failures before the next start. No failure is left out, and none is told twice.
func TestKilledBeforeTheCursor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shop("shop"))
	w.fail(t, "shop", 0, 30)
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		w.teller(t, func(string) { runtime.Goexit() }).tellAllCallers(t.Context())
	}()
	<-killed
	if len(w.made) != 1 || w.meta[lastToldKey("shop")] != 0 {
		t.Fatalf("%d triggers, rows %v", len(w.made), w.meta)
	}
	w.fail(t, "shop", 30, 150)
	w.teller(t, nil).tellAllCallers(t.Context())
	w.wantTold(t, "shop", 1, 150)
	if _, sizes := w.told(t, "shop"); !slices.Equal(sizes, []int{30, 100, 20}) {
		t.Errorf("triggers of %v", sizes)
	}
}

// Triggers that failed are dead letters too, but they are not told. Otherwise a URL that stays
// down would get a trigger about its own failed trigger, which would fail again.
func TestTriggersAreNotTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shop("shop"))
	for n := range 9 {
		d := letter(n, "shop")
		if n%3 != 1 {
			d.Channel = deadletter.ChannelTrigger
		}
		if err := w.store.DeadLetters().Put(t.Context(), []engine.DeadLetter{d}); err != nil {
			t.Fatal(err)
		}
	}
	w.teller(t, nil).tellAllCallers(t.Context())
	if seqs, _ := w.told(t, "shop"); !slices.Equal(seqs, []uint64{2, 5, 8}) {
		t.Errorf("told of %v", seqs)
	}
}

// Failures from before the URL was set are not told, even after a restart.
func TestSinceTheURLWasSet(t *testing.T) {
	t.Parallel()
	c := shop("shop")
	c.OutcomesSince = t0.UnixMilli() + 150
	w := newWorld(t, c)
	w.fail(t, "shop", 0, 160)
	w.teller(t, nil).tellAllCallers(t.Context())
	w.wantTold(t, "shop", 151, 160)
}

// A caller whose triggers are refused does not hold up others, and is told later.
func TestRefusedCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shop("bank"), shop("shop"))
	w.fail(t, "bank", 0, 3)
	w.fail(t, "shop", 0, 3)
	w.refuse["bank"] = &notify.Error{Kind: notify.KindThrottled, Code: "too_many_pending", Msg: "full"}
	x := w.teller(t, nil)
	var codes []string
	x.cfg.Refused = func(code string) { codes = append(codes, code) }
	x.tellAllCallers(t.Context())
	w.wantTold(t, "shop", 1, 3)
	w.wantTold(t, "bank", 1, 0)
	delete(w.refuse, "bank")
	x.tellAllCallers(t.Context())
	w.wantTold(t, "bank", 1, 3)
	if !slices.Equal(codes, []string{"too_many_pending"}) {
		t.Errorf("refusals %v", codes)
	}
}

// A Put through Watch is told after Gather. Nothing else wakes the Teller here.
func TestRunWakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, shop("shop"))
		x := w.teller(t, nil)
		x.cfg.Every = time.Hour
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- x.Run(ctx) }()
		synctest.Wait()
		if err := x.Watch(w.store.DeadLetters()).Put(ctx, []engine.DeadLetter{letter(0, "shop")}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		w.wantTold(t, "shop", 1, 1)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// straight hands index rows to the queue at once: every trigger here is due.
type straight struct {
	publish func(context.Context, []engine.Timer) error
}

func (s straight) Put(ctx context.Context, ts []engine.Timer) error { return s.publish(ctx, ts) }

type deadTopic struct {
	mu   sync.Mutex
	recs []trigger.DeadRecord
	came chan struct{}
}

func (d *deadTopic) Append(_ context.Context, rs []trigger.DeadRecord) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recs = append(d.recs, rs...)
	close(d.came)
	return nil
}

// TestCallsTheURL covers the whole way: failures become triggers and signed calls, which the
// receivers' library verifies. A URL that stays down ends in triggers-dlq.
func TestCallsTheURL(t *testing.T) {
	t.Parallel()
	for _, up := range []bool{true, false} {
		t.Run(fmt.Sprint("up ", up), func(t *testing.T) {
			t.Parallel()
			callsTheURL(t, up)
		})
	}
}

type call struct {
	header http.Header
	body   []byte
}

func callsTheURL(t *testing.T, up bool) {
	calls := make(chan call, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var raw json.RawMessage
		if err := json.NewDecoder(r.Body).Decode(&raw); err != nil {
			t.Error(err)
		}
		calls <- call{r.Header, raw}
		if !up {
			rw.WriteHeader(http.StatusGone) // refused for good: no retry
		}
	}))
	defer srv.Close()
	store := memory.New()
	secret := "whsec_" + "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	c := engine.Caller{
		ID: "shop", CallbackURLs: []string{srv.URL + "/"}, OutcomesURL: srv.URL + "/failed",
		Secrets: []engine.CallerSecret{{Secret: secret, Created: t0.UnixMilli()}},
	}
	if err := store.Callers().Put(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	egress, err := trigger.NewEgress(trigger.EgressConfig{Policy: trigger.EgressPolicy{
		Plain: true, AnyPort: true, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	queue := store.Queue("triggers", 1000)
	rows := straight{trigger.ToQueue(queue)}
	svc, err := trigger.New(trigger.Config{Triggers: store.Triggers(), Callers: store.Callers(), Idem: store.Idem(), Later: rows, Egress: egress})
	if err != nil {
		t.Fatal(err)
	}
	dead := &deadTopic{came: make(chan struct{})}
	disp, err := trigger.NewDispatcher(trigger.DispatcherConfig{Triggers: store.Triggers(), Callers: store.Callers(), Queue: queue, Later: rows, Dead: dead, Egress: egress})
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	x, err := New(Config{Letters: store.DeadLetters(), Callers: store.Callers(), Meta: store.Meta(), Triggers: svc, Told: func(n int) { told += n }})
	if err != nil {
		t.Fatal(err)
	}
	var ds []engine.DeadLetter
	for n := range 60 { // more than a caller's own payload may hold
		ds = append(ds, letter(n, "shop"))
	}
	if err := store.DeadLetters().Put(t.Context(), ds); err != nil {
		t.Fatal(err)
	}
	x.tellAllCallers(t.Context())
	if told != 60 {
		t.Fatalf("%d told", told)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- disp.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	limit := time.After(time.Minute)
	select {
	case got := <-calls:
		w, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Verify(got.body, got.header); err != nil {
			t.Error(err)
		}
		var b struct {
			ID      string  `json:"trigger_id"`
			Payload Payload `json:"payload"`
		}
		if err := json.Unmarshal(got.body, &b); err != nil || len(b.Payload.Outcomes) != 60 || b.ID != got.header.Get("webhook-id") {
			t.Errorf("%v, %s: %s", err, got.header.Get("webhook-id"), got.body)
		}
	case <-limit:
		t.Fatal("no call")
	}
	if up {
		return
	}
	select {
	case <-dead.came:
		dead.mu.Lock()
		defer dead.mu.Unlock()
		var l trigger.DeadLetter
		if err := json.Unmarshal(dead.recs[0].Value, &l); err != nil || l.Caller != "shop" || l.Status != http.StatusGone {
			t.Errorf("%+v, %v", l, err)
		}
	case <-limit:
		t.Fatal("nothing in triggers-dlq")
	}
}
