package trigger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/notify"
)

// opInput and opOutput are one operation on one trigger, as its client or its
// receiver saw it.
type opInput struct {
	id   string
	what string // create, cancel, reschedule, get; claim, settle by a dispatcher
	gen  uint32 // claim: of the row
	from engine.TriggerState
	to   engine.TriggerState // settle
}

type opOutput struct {
	code  string // "ok", "unknown", or an error's
	state engine.TriggerState
	gen   uint32
}

type modelState struct {
	state engine.TriggerState // 0: there is none
	gen   uint32
}

// triggerModel is a trigger as its callers see it: one value with a state and a generation.
var triggerModel = (&porcupine.NondeterministicModel{
	Partition: enginetest.ByKey(func(in opInput) string { return in.id }),
	Init:      func() []any { return []any{modelState{}} },
	Step: func(state, input, output any) []any {
		s, in, out := state.(modelState), input.(opInput), output.(opOutput)
		if out.code == "unknown" { // the operation was done or not
			next := []any{s}
			if done, legal := applyOp(s, in); legal {
				next = append(next, done)
			}
			return next
		}
		if in.what == "get" {
			if s == (modelState{out.state, out.gen}) {
				return []any{s}
			}
			return nil
		}
		if out.code == "ok" {
			done, legal := applyOp(s, in)
			if !legal || in.what == "reschedule" && done.gen != out.gen {
				return nil
			}
			return []any{done}
		}
		want := map[string]engine.TriggerState{
			"too_late": engine.TriggerInFlight, "trigger_fired": engine.TriggerFired, "trigger_failed": engine.TriggerFailed,
			"trigger_cancelled": engine.TriggerCancelled, "trigger_expired": engine.TriggerExpired,
		}[out.code]
		if want == 0 || s.state != want {
			return nil
		}
		return []any{s}
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}).ToModel()

// applyOp returns the state after an operation that was done, and whether the operation is possible
// in the state s.
func applyOp(s modelState, in opInput) (modelState, bool) {
	switch in.what {
	case "create":
		return modelState{state: engine.TriggerPending}, s.state == 0
	case "cancel":
		return modelState{engine.TriggerCancelled, s.gen}, s.state == engine.TriggerPending || s.state == engine.TriggerCancelled
	case "reschedule":
		return modelState{s.state, s.gen + 1}, s.state == engine.TriggerPending
	case "claim":
		return modelState{engine.TriggerInFlight, s.gen}, s.state == in.from && s.gen == in.gen
	case "settle":
		return modelState{in.to, s.gen}, s.state == in.from
	}
	return s, false
}

// record records what a client knows after an answer.
func (h *history) record(client int, in opInput, call int64, out opOutput) {
	h.Note(client, in, call, out, out.code != "unknown")
}

// history has a plant whose stores are slow and fail now and then, and clients and a receiver that
// record what they see.
type history struct {
	*plant
	enginetest.History[opInput, opOutput]
	mu  sync.Mutex
	rng *rand.Rand
}

func (h *history) random(n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rng.IntN(n)
}

// flaky is the store as one process sees it. The swaps of a dispatcher are recorded when they are
// done; a claim ends when its call reaches the receiver.
type flaky struct {
	engine.Triggers
	h          *history
	dispatcher bool
}

func (f *flaky) linger() { time.Sleep(time.Duration(f.h.random(20)) * time.Millisecond) }

func (f *flaky) slip() (fail, applied bool) { return f.h.random(12) == 0, f.h.random(2) == 0 }

func (f *flaky) Get(ctx context.Context, ids []string) ([]engine.Trigger, error) {
	f.linger()
	if fail, _ := f.slip(); fail {
		return nil, errDown
	}
	return f.Triggers.Get(ctx, ids)
}

func (f *flaky) Create(ctx context.Context, ts []engine.Trigger) ([]bool, error) {
	f.linger()
	fail, applied := f.slip()
	if fail && !applied {
		return nil, errDown
	}
	won, err := f.Triggers.Create(ctx, ts)
	f.linger()
	if fail {
		return nil, errDown
	}
	return won, err
}

func (f *flaky) Swap(ctx context.Context, ss []engine.TriggerSwap) ([]bool, error) {
	f.linger()
	fail, applied := f.slip()
	if fail && !applied {
		return nil, errDown
	}
	ids := make([]string, len(ss))
	for i := range ss {
		ids[i] = ss[i].New.ID
	}
	call := f.h.Tick()
	before, _ := f.Triggers.Get(ctx, ids)
	won, err := f.Triggers.Swap(ctx, ss)
	if f.dispatcher {
		for i, s := range ss {
			if !won[i] {
				continue
			}
			in := opInput{id: s.New.ID, what: "settle", from: before[i].State, to: s.New.State}
			if s.New.State == engine.TriggerInFlight {
				in = opInput{id: s.New.ID, what: "claim", from: before[i].State, gen: s.New.Gen}
			}
			if before[i].State == s.New.State && isTerminal(s.New.State) {
				continue // the mark of a dead letter
			}
			f.h.record(100, in, call, opOutput{code: "ok"})
		}
	}
	f.linger()
	if fail {
		return nil, errDown
	}
	return won, err
}

// outcome returns what a client knows after an answer.
func outcome(row engine.Trigger, err error) opOutput {
	e, _ := err.(*notify.Error)
	switch {
	case err == nil:
		return opOutput{"ok", row.State, row.Gen}
	case e.Kind == notify.KindUnavailable:
		return opOutput{code: "unknown"}
	}
	return opOutput{code: e.Code}
}

// client does random things to triggers.
func (h *history) client(s *Service, n, ops int, ids *[]string) {
	ctx := context.Background()
	for i := range ops {
		time.Sleep(time.Duration(h.random(400)) * time.Millisecond)
		h.mu.Lock()
		id := ""
		if len(*ids) > 0 {
			id = (*ids)[h.rng.IntN(len(*ids))]
		}
		full := len(*ids) >= 8
		h.mu.Unlock()
		if id == "" || !full && h.random(3) == 0 {
			call := h.Tick()
			id, err := h.tryCreate(s, "shop", fmt.Sprintf(`"delay_seconds":%g,"retry_schedule_seconds":[1,1,2]`, float64(h.random(4000))/1000), fmt.Sprint(n, "-", i))
			if err == nil { // one that is not known to exist has no id to ask for
				h.record(n, opInput{id: id, what: "create"}, call, opOutput{code: "ok"})
				h.mu.Lock()
				*ids = append(*ids, id)
				h.mu.Unlock()
			}
			continue
		}
		call := h.Tick()
		switch h.random(6) {
		case 0:
			row, err := s.Cancel(ctx, "shop", id)
			h.record(n, opInput{id: id, what: "cancel"}, call, outcome(row, err))
		case 1, 2:
			row, err := s.RescheduleTo(ctx, "shop", id, When{Delay: new(time.Duration(h.random(3000)) * time.Millisecond)})
			h.record(n, opInput{id: id, what: "reschedule"}, call, outcome(row, err))
		default:
			if row, err := s.Get(ctx, "shop", id); err == nil {
				h.record(n, opInput{id: id, what: "get"}, call, outcome(row, nil))
			}
		}
	}
}

// oneHistory runs clients against two dispatchers and two services.
func oneHistory(t *testing.T, seed uint64, change func(*history)) []porcupine.Operation {
	var ops []porcupine.Operation
	synctest.Test(t, func(t *testing.T) {
		h := &history{plant: newPlant(t, func(c *DispatcherConfig) { c.Breaker.MinVolume = 1 << 20 })}
		h.rng = rand.New(rand.NewPCG(seed, 2))
		if change != nil {
			change(h)
		}
		h.sink.answer = func(string, string, int) (time.Duration, result) {
			took := time.Duration(h.random(500)) * time.Millisecond
			if h.random(3) == 0 {
				return took, status(503)
			}
			return took, ok
		}
		inner := h.cfg.post
		h.cfg.post = func(ctx context.Context, u *url.URL, hd http.Header, body []byte) result {
			// A call starts here. So its claim is valid at this moment.
			id := hd.Get("X-Trigger-Id")
			call := h.Tick()
			h.record(101, opInput{id: id, what: "get"}, call, opOutput{"ok", engine.TriggerInFlight, h.row(id).Gen})
			return inner(ctx, u, hd, body)
		}
		h.cfg.Triggers = &flaky{h.cfg.Triggers, h, true}
		h.run()
		h.run()
		var ids []string
		var wg sync.WaitGroup
		for n := range 8 {
			cfg := h.scfg
			cfg.Triggers, cfg.Owner = &flaky{cfg.Triggers, h, false}, ""
			s, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { h.client(s, n, 40, &ids) })
		}
		wg.Wait()
		pass(10 * time.Minute)
		for _, id := range ids {
			row := h.row(id)
			if !isTerminal(row.State) {
				t.Errorf("%s ended as %s", id, StateName(row.State))
			}
			h.record(102, opInput{id: id, what: "get"}, h.Tick(), opOutput{"ok", row.State, row.Gen})
		}
		// A create that was not answered has no operation of its own: only the dispatchers know its id.
		ops = h.Operations(func(in opInput) bool { return slices.Contains(ids, in.id) })
	})
	return ops
}

// Histories of create, cancel, reschedule, get and fire are linearizable for each trigger, although
// the stores fail before or after they have executed a call.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	histories := 50
	if testing.Short() {
		histories = 10
	}
	enginetest.CheckHistories(t, triggerModel, "trigger", histories, func(seed uint64) []porcupine.Operation { return oneHistory(t, seed, nil) },
		func(in, out any) string { return in.(opInput).what + " " + out.(opOutput).code },
		"create ok", "cancel ok", "cancel too_late", "cancel trigger_fired", "reschedule ok", "reschedule too_late", "get ok", "claim ok", "settle ok")
}

// lax is a store whose swaps always win: the compare is missing.
type lax struct{ engine.Triggers }

func (l lax) Swap(ctx context.Context, ss []engine.TriggerSwap) ([]bool, error) {
	won := make([]bool, len(ss))
	for i := range ss {
		rows, err := l.Get(ctx, []string{ss[i].New.ID})
		if err != nil {
			return nil, err
		}
		ss[i].Old = rows[0].Version
		w, err := l.Triggers.Swap(ctx, ss[i:i+1])
		if err != nil {
			return nil, err
		}
		won[i] = w[0]
	}
	return won, nil
}

// The checker finds histories that are not linearizable.
func TestLinearizableCatches(t *testing.T) {
	t.Parallel()
	enginetest.CheckFindsIllegal(t, triggerModel, 20, func(seed uint64) []porcupine.Operation {
		return oneHistory(t, seed, func(h *history) {
			h.cfg.Triggers, h.scfg.Triggers = lax{h.cfg.Triggers}, lax{h.scfg.Triggers}
		})
	})
}
