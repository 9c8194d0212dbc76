package trigger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// points are the places between two steps at which a process may die.
var points = []string{
	"request-reserved", "trigger-indexed", "trigger-created", "request-stored", "trigger-reschedule-indexed",
	"trigger-claimed", "trigger-called-before-outcome", "trigger-retry-before-index", "trigger-failed-before-dlq",
	"trigger-dlq-before-mark", "trigger-outcome-before-ack", "trigger-parked-before-ack", "trigger-enqueued-before-ack",
}

// told is what a client was told about a trigger.
type told struct {
	id        string
	fireAt    int64     // of the last reschedule that was answered
	since     time.Time // when that was answered
	cancelled time.Time // when a cancel was answered with ok
}

// world has a plant whose process dies now and then, and clients that repeat their requests.
type world struct {
	*plant
	rng   *rand.Rand
	now   *mortal
	arm   func() func(string) bool // returns the function that decides where the next process dies
	kills int
	open  map[openClaim]struct{} // claims that were open when a process died
	told  map[string]*told
	list  []*told
}

type openClaim struct {
	id    string
	epoch uint32
}

// count records the claims that a dead process left.
func (w *world) count() {
	rows, err := w.svc.ListAll(context.Background(), engine.TriggerInFlight, "", MaxPage)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range rows {
		w.open[openClaim{rows[i].ID, rows[i].Epoch}] = struct{}{}
	}
}

// alive returns a process that runs. If the last process has died, alive starts another after a
// while.
func (w *world) alive() *mortal {
	if w.now != nil && !w.now.gone() {
		return w.now
	}
	if w.now != nil {
		w.kills++
		w.count()
		w.now.bury()
		time.Sleep(time.Duration(w.rng.IntN(5000)) * time.Millisecond)
	}
	w.now = w.spawn(w.rng.Uint64(), w.arm())
	return w.now
}

// ask repeats fn, with whichever process runs then, until fn is answered.
func (w *world) ask(fn func(s *Service) error) error {
	for {
		err := fn(w.alive().svc)
		e, is := err.(*notify.Error)
		if err == nil || is && e.Kind != notify.KindUnavailable && e.Code != "idempotency_running" {
			return err
		}
		time.Sleep(time.Second)
	}
}

// client does something random.
func (w *world) client(n int) {
	key := fmt.Sprint("key", n)
	delay := w.rng.IntN(60_000)
	if w.rng.IntN(3) > 0 {
		delay -= delay % 15_000 // many are due at once
	}
	extra := fmt.Sprintf(`"delay_seconds":%g`, float64(delay)/1000)
	if w.rng.IntN(3) == 0 {
		extra += `,"retry_schedule_seconds":[1,2,5]`
	}
	if w.rng.IntN(8) == 0 {
		extra += `,"max_lateness_seconds":20,"late_policy":"` + []string{"drop", "dead_letter"}[w.rng.IntN(2)] + `"`
	}
	x := &told{}
	if w.rng.IntN(4) == 0 { // a request without a key is sent only once
		id, err := w.tryCreate(w.alive().svc, "shop", extra, "")
		if err != nil {
			return
		}
		x.id = id
	} else if err := w.ask(func(s *Service) (err error) {
		x.id, err = w.tryCreate(s, "shop", extra, key)
		return err
	}); err != nil {
		w.t.Fatalf("create: %v", err)
	}
	x.fireAt, x.since = w.row(x.id).FireAt, time.Now()
	w.told[x.id] = x
	w.list = append(w.list, x)
}

// clients create some triggers, and change and cancel some while they fire.
func (w *world) clients(n int) {
	for i := range n {
		w.client(i)
	}
	for range 2 * n {
		time.Sleep(time.Duration(w.rng.IntN(2000)) * time.Millisecond)
		x := w.list[w.rng.IntN(len(w.list))]
		switch w.rng.IntN(4) {
		case 0:
			w.tryCancel(x)
		case 1:
			w.tryReschedule(x)
		default:
			w.alive()
		}
	}
}

func (w *world) tryCancel(x *told) {
	err := w.ask(func(s *Service) error {
		_, err := s.Cancel(context.Background(), "shop", x.id)
		return err
	})
	switch e, _ := err.(*notify.Error); {
	case err == nil:
		x.cancelled = time.Now()
	case e.Kind != notify.KindConflict:
		w.t.Fatalf("cancel: %v", err)
	}
}

func (w *world) tryReschedule(x *told) {
	var row engine.Trigger
	err := w.ask(func(s *Service) (err error) {
		row, err = s.Reschedule(context.Background(), "shop", x.id, fmt.Appendf(nil, `{"delay_seconds":%d}`, w.rng.IntN(60)))
		return err
	})
	switch e, _ := err.(*notify.Error); {
	case err == nil:
		x.fireAt, x.since = row.FireAt, time.Now()
	case e.Kind != notify.KindConflict:
		w.t.Fatalf("reschedule: %v", err)
	}
}

// settle waits until everything has ended.
func (w *world) settle() {
	for range 200 {
		w.alive()
		time.Sleep(time.Minute)
	}
}

// check compares what clients were told, and what receivers saw, with the rows.
func (w *world) check() {
	w.t.Helper()
	twice := 0
	for id, x := range w.told {
		row := w.row(id)
		if !isTerminal(row.State) {
			w.t.Errorf("%s ended as %s (%s)", id, StateName(row.State), row.Reason)
			continue
		}
		calls := w.sink.of(id)
		taken := false
		seen := map[string]int{}
		for _, c := range calls {
			seen[c.attempt]++
			taken = taken || c.header.Get("X-Test-Taken") != ""
			switch {
			case !x.cancelled.IsZero() && c.at.After(x.cancelled):
				w.t.Errorf("%s was called %v after its cancel", id, c.at.Sub(x.cancelled))
			case c.at.After(x.since) && c.at.UnixMilli() < x.fireAt:
				w.t.Errorf("%s was called %d ms early", id, x.fireAt-c.at.UnixMilli())
			}
		}
		for _, n := range seen {
			twice += n - 1
		}
		letters := map[string]int{}
		for _, l := range w.dead.of(id) {
			letters[fmt.Sprintf("%+v", l)]++
		}
		switch row.State {
		case engine.TriggerFired:
			if !taken {
				w.t.Errorf("%s is FIRED, and nobody took it", id)
			}
		case engine.TriggerFailed:
			if len(letters) != 1 || row.NextAt != 0 {
				w.t.Errorf("%s failed with %d different dead letters, owed %v", id, len(letters), row.NextAt != 0)
			}
		case engine.TriggerCancelled, engine.TriggerExpired:
			if row.State == engine.TriggerExpired && len(calls) > 0 {
				w.t.Errorf("%s is EXPIRED after %d calls", id, len(calls))
			}
		}
		if row.State != engine.TriggerFailed && len(letters) != 0 {
			w.t.Errorf("%s is %s with a dead letter", id, StateName(row.State))
		}
		if !x.cancelled.IsZero() && row.State != engine.TriggerCancelled {
			w.t.Errorf("%s was cancelled and is %s", id, StateName(row.State))
		}
	}
	// A trigger whose caller got no answer does not stay for ever either.
	for state := engine.TriggerPending; state <= engine.TriggerInFlight; state++ {
		if rows, err := w.svc.ListAll(context.Background(), state, "", MaxPage); err != nil || len(rows) > 0 {
			w.t.Errorf("%d are %s, %v", len(rows), StateName(state), err)
		}
	}
	if d, _ := w.queue.Depth(context.Background()); d != (engine.QueueDepth{}) {
		w.t.Errorf("left in the queue: %+v", d)
	}
	// A kill repeats at most the calls of claims that were open.
	if most := len(w.open); twice > most {
		w.t.Errorf("%d calls were repeated over %d kills with %d claims open", twice, w.kills, most)
	}
	if early := w.evs.get("early"); early != 0 {
		w.t.Errorf("%d early", early)
	}
}

func newWorld(t *testing.T, seed uint64, arm func(*rand.Rand) func() func(string) bool) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), open: map[openClaim]struct{}{}, told: map[string]*told{}}
	w.plant = newPlant(t, func(c *DispatcherConfig) {
		c.CallerInFlight, c.MaxQueued = 3, 6 // so that messages are put off too
		c.Breaker.MinVolume = 1000
	})
	w.sink.answer = func(id, _ string, n int) (time.Duration, result) {
		h := notify.HashUser(fmt.Appendf(nil, "%s %d %d", id, n, seed))
		took := time.Duration(h%3000) * time.Millisecond
		switch k := h / 3000 % 20; {
		case k == 0:
			return took, status(410)
		case k < 6:
			return took, status(503)
		case k == 6:
			return took, status(429)
		}
		w.sink.mu.Lock()
		defer w.sink.mu.Unlock()
		for i := range w.sink.calls {
			if w.sink.calls[i].id == id {
				w.sink.calls[i].header.Set("X-Test-Taken", "yes")
			}
		}
		return took, ok
	}
	w.arm = arm(w.rng)
	return w
}

// The process dies at each of the points, one of the first few times it reaches the point.
func TestKillAtEachPoint(t *testing.T) {
	t.Parallel()
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			died := false
			// The scheduling of goroutines decides how often a point is reached. So runs are added
			// until a process dies there.
			for run := 0; run < 12 || !died && run < 300; run++ {
				in1(t, func(t *testing.T) {
					left := 1 + run%3
					if run >= 12 {
						left = 1
					}
					w := newWorld(t, uint64(run), func(*rand.Rand) func() func(string) bool {
						return func() func(string) bool {
							return func(at string) bool {
								if at == point {
									left--
								}
								return at == point && left == 0
							}
						}
					})
					w.clients(25)
					w.settle()
					w.check()
					died = died || w.kills > 0
					w.now.bury()
				})
			}
			if !died {
				t.Errorf("%s was never reached: this test shows nothing", point)
			}
		})
	}
}

// The process dies at random points, again and again.
func TestKillAtRandom(t *testing.T) {
	t.Parallel()
	seeds := 100
	if testing.Short() {
		seeds = 20
	}
	kills, triggers, calls := 0, 0, 0
	states := map[string]int{}
	for seed := range seeds {
		in1(t, func(t *testing.T) {
			w := newWorld(t, uint64(seed), func(rng *rand.Rand) func() func(string) bool {
				return func() func(string) bool {
					point, nth := points[rng.IntN(len(points))], 1+rng.IntN(5)
					return func(at string) bool {
						if at == point {
							nth--
						}
						return at == point && nth == 0
					}
				}
			})
			w.clients(30)
			w.settle()
			w.check()
			kills += w.kills
			triggers += len(w.told)
			calls += w.sink.count()
			for id := range w.told {
				states[StateName(w.row(id).State)]++
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
			w.now.bury()
		})
		if t.Failed() {
			break
		}
	}
	t.Logf("triggers=%d kills=%d calls=%d states=%v", triggers, kills, calls, states)
}
