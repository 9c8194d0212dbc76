package trigger

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// twoRoutes has the two ways to register triggers, with a body for each.
var twoRoutes = []struct {
	name string
	call func(*Service, context.Context, request.Meta, []byte) (request.Answer, error)
	body string
	n    int // triggers
}{
	{"POST /v1/triggers", (*Service).Register, `{` + hook + `,"delay_seconds":60,"jitter_seconds":5}`, 1},
	{"POST /v1/triggers:batch", (*Service).RegisterBatch, `[{` + hook + `,"delay_seconds":60},{"x":1},{` + hook + `,"delay_seconds":90,"jitter_seconds":5}]`, 2},
}

func idsIn(t *testing.T, body []byte) (ids []string) {
	t.Helper()
	var one struct {
		ID      string `json:"trigger_id"`
		Results []struct {
			ID string `json:"trigger_id"`
		}
	}
	if err := json.Unmarshal(body, &one); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if one.ID != "" {
		return []string{one.ID}
	}
	for _, r := range one.Results {
		if r.ID != "" {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func (p *plant) stored() int {
	p.t.Helper()
	rows, err := p.store.Triggers().List(context.Background(), "", 0, engine.TriggerCursor{}, 10_000)
	if err != nil {
		p.t.Fatal(err)
	}
	return len(rows)
}

func TestReplay(t *testing.T) {
	in(t, func(t *testing.T) {
		for _, route := range twoRoutes {
			p := newPlant(t, nil)
			ctx := context.Background()
			m := request.Meta{Caller: "shop", Route: route.name, Key: "k"}
			first, err := route.call(p.svc, ctx, m, []byte(route.body))
			if err != nil || first.Replayed {
				t.Fatalf("%+v, %v", first, err)
			}
			time.Sleep(time.Hour)
			again, err := route.call(p.svc, ctx, m, []byte(route.body))
			if err != nil || !again.Replayed || string(again.Body) != string(first.Body) || again.Status != first.Status {
				t.Errorf("again: %+v, %v", again, err)
			}
			_, err = route.call(p.svc, ctx, m, []byte(route.body+" "))
			refused(t, err, notify.KindMismatch, "idempotency_mismatch", "Idempotency-Key")
			_, err = route.call(p.svc, ctx, m, []byte(`{`))
			refused(t, err, notify.KindMismatch, "idempotency_mismatch", "Idempotency-Key")
			if n := p.stored(); n != route.n {
				t.Errorf("%d triggers, want %d", n, route.n)
			}
			// The same key of another caller, or on another route, is another key.
			p.putCaller(engine.Caller{ID: "bank", CallbackURLs: []string{base("shop")}})
			if a, err := route.call(p.svc, ctx, request.Meta{Caller: "bank", Route: route.name, Key: "k"}, []byte(route.body)); err != nil || a.Replayed {
				t.Errorf("another caller: %+v, %v", a, err)
			}
			if a, err := route.call(p.svc, ctx, request.Meta{Caller: "shop", Route: "other", Key: "k"}, []byte(route.body)); err != nil || a.Replayed {
				t.Errorf("another route: %+v, %v", a, err)
			}
			// A refusal leaves the key free.
			m.Key = "refused"
			if _, err := p.svc.Register(ctx, m, []byte(`{}`)); notify.KindOf(err) != notify.KindInvalid {
				t.Fatal(err)
			}
			if a, err := route.call(p.svc, ctx, m, []byte(route.body)); err != nil || a.Replayed {
				t.Errorf("after a refusal: %+v, %v", a, err)
			}
			time.Sleep(25 * time.Hour)
			m.Key = "k"
			if a, err := route.call(p.svc, ctx, m, []byte(route.body)); err != nil || a.Replayed {
				t.Errorf("a day later: %+v, %v", a, err)
			}
		}
	})
}

// A key is kept until its trigger is due, and for one more hour.
func TestKeyOutlivesTrigger(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		ctx := context.Background()
		m, body := request.Meta{Caller: "shop", Route: "r", Key: "k"}, []byte(`{`+hook+`,"delay_seconds":864000}`)
		if _, err := p.svc.Register(ctx, m, body); err != nil {
			t.Fatal(err)
		}
		time.Sleep(240*time.Hour + 59*time.Minute)
		if a, err := p.svc.Register(ctx, m, body); err != nil || !a.Replayed {
			t.Errorf("replayed %v, %v", a.Replayed, err)
		}
	})
}

// Of many requests with one key, one does the work and the others are told to wait. In the end all
// get the same ids.
func TestManyWithOneKey(t *testing.T) {
	in(t, func(t *testing.T) {
		for _, route := range twoRoutes {
			p := newPlant(t, nil)
			s := &shaky{Triggers: p.store.Triggers(), on: func(method string, _ []string) slip {
				if method == "Create" {
					time.Sleep(5 * time.Second)
				}
				return slip{}
			}}
			p.scfg.Triggers = s
			p.svc, _ = New(p.scfg)
			var mu sync.Mutex
			bodies := map[string]int{}
			waits := 0
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					for {
						a, err := route.call(p.svc, context.Background(), request.Meta{Caller: "shop", Route: route.name, Key: "k"}, []byte(route.body))
						mu.Lock()
						if err == nil {
							bodies[string(a.Body)]++
							mu.Unlock()
							return
						}
						e, is := err.(*notify.Error)
						if !is || e.Code != "idempotency_running" || e.RetryAfter == 0 {
							t.Errorf("%v", err)
						}
						waits++
						mu.Unlock()
						time.Sleep(e.RetryAfter)
					}
				})
			}
			wg.Wait()
			if len(bodies) != 1 || waits == 0 || p.stored() != route.n {
				t.Errorf("%s: %d answers, %d waits, %d triggers", route.name, len(bodies), waits, p.stored())
			}
		}
	})
}

// Wherever a process dies, a repeated request gets the ids of the first try. Each trigger fires
// once, at the time that was computed first.
func TestKilledRegister(t *testing.T) {
	t.Parallel()
	for _, route := range twoRoutes {
		for _, point := range []string{"request-reserved", "trigger-indexed", "trigger-created", "request-stored"} {
			t.Run(fmt.Sprint(route.n, point), func(t *testing.T) {
				in(t, func(t *testing.T) {
					p := newPlant(t, nil)
					dying := p.scfg
					dying.hit = func(name string) {
						if name == point {
							runtime.Goexit()
						}
					}
					doomed, err := New(dying)
					if err != nil {
						t.Fatal(err)
					}
					ctx := context.Background()
					m := request.Meta{Caller: "shop", Route: route.name, Key: "k"}
					began := time.Now()
					dead := make(chan struct{})
					go func() {
						defer close(dead)
						_, _ = route.call(doomed, ctx, m, []byte(route.body))
						t.Error("it did not die")
					}()
					<-dead
					_, err = route.call(p.svc, ctx, m, []byte(route.body))
					refused(t, err, notify.KindConflict, "idempotency_running", "Idempotency-Key")
					before := p.stored()
					time.Sleep(31 * time.Second)
					// Meanwhile the URL was removed from the caller's list. A trigger that was
					// admitted stays admitted.
					if before > 0 {
						p.putCaller(engine.Caller{ID: "shop"})
					}
					a, err := route.call(p.svc, ctx, m, []byte(route.body))
					if err != nil {
						t.Fatal(err)
					}
					ids := idsIn(t, a.Body)
					if len(ids) != route.n || p.stored() != route.n {
						t.Fatalf("%d ids, %d triggers, want %d", len(ids), p.stored(), route.n)
					}
					for i, id := range ids {
						row := p.want(id, engine.TriggerPending)
						if b, _ := parseID(id); b.Time().UnixMilli() != began.UnixMilli() {
							t.Errorf("the id is of %v, the request of %v", b.Time(), began)
						}
						if d := time.UnixMilli(row.FireAt).Sub(began); d < time.Duration(60+30*i)*time.Second || d > time.Duration(65+30*i)*time.Second {
							t.Errorf("fires %v after the first try", d)
						}
					}
					again, err := route.call(p.svc, ctx, m, []byte(route.body))
					if err != nil || !again.Replayed || string(again.Body) != string(a.Body) {
						t.Errorf("again: %+v, %v", again, err)
					}
					p.putCaller(engine.Caller{ID: "shop", CallbackURLs: []string{base("shop")}})
					_, stop := p.run()
					defer stop()
					pass(5 * time.Minute)
					for _, id := range ids {
						p.want(id, engine.TriggerFired)
						if n := len(p.sink.of(id)); n != 1 {
							t.Errorf("%d calls", n)
						}
					}
				})
			})
		}
	}
}

// While the store is away, the answer is unavailable. Afterwards the same key gets the same
// trigger, whether the first try was stored or not.
func TestUnknownCreate(t *testing.T) {
	in(t, func(t *testing.T) {
		for _, applied := range []bool{false, true} {
			p := newPlant(t, nil)
			fail := "Create"
			p.scfg.Triggers = &shaky{Triggers: p.store.Triggers(), on: func(method string, _ []string) slip {
				if method == fail {
					return slip{err: errDown, applied: applied}
				}
				return slip{}
			}}
			p.svc, _ = New(p.scfg)
			if _, err := p.tryCreate(p.svc, "shop", `"delay_seconds":60`, "k"); notify.KindOf(err) != notify.KindUnavailable {
				t.Fatalf("answered %v", err)
			}
			// A repeat that fails before it stores anything says nothing about the earlier create.
			// So the key stays taken.
			fail = "Get"
			if _, err := p.tryCreate(p.svc, "shop", `"delay_seconds":60`, "k"); notify.KindOf(err) != notify.KindUnavailable {
				t.Fatalf("recalled: %v", err)
			}
			fail = ""
			id, err := p.tryCreate(p.svc, "shop", `"delay_seconds":60`, "k") // at once: the lease was given up
			if err != nil {
				t.Fatal(err)
			}
			_, stop := p.run()
			pass(2 * time.Minute)
			stop()
			p.want(id, engine.TriggerFired)
			if n := p.sink.count(); n != 1 || p.stored() != 1 {
				t.Errorf("applied %v: %d calls, %d triggers", applied, n, p.stored())
			}
		}
	})
}

// The first writer of a registration died after it had stored the index row and before it stored
// the state row. The timer engine has released the index row. The message of that row has waited
// for the state row, and is dropped or about to be dropped. A repeat with the key stores the same
// triggers. It must not rely on that message.
func TestCopyOfAnOrphanIsNotLost(t *testing.T) {
	in(t, func(t *testing.T) {
		const orphan = 5 * time.Second
		for _, route := range twoRoutes {
			body := []byte(strings.ReplaceAll(route.body, `,"jitter_seconds":5`, ""))
			body = []byte(strings.NewReplacer(`:60`, `:1`, `:90`, `:1`).Replace(string(body)))
			// The repeat comes when the message waits, is being dropped, or is gone.
			for _, after := range []time.Duration{3 * time.Second, 5 * time.Second, 7 * time.Second, 10 * time.Second, 12 * time.Second, 20 * time.Second} {
				time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute))) // all of it in one minute
				p := newPlant(t, func(c *DispatcherConfig) {
					c.Orphan = orphan
					c.Queue = tardy{c.Queue, time.Second}
				})
				p.scfg.Orphan, p.scfg.Lease = orphan, time.Second
				s := &shaky{Triggers: p.store.Triggers(), on: func(method string, _ []string) slip {
					if method == "Create" {
						return slip{err: errDown}
					}
					return slip{}
				}}
				p.scfg.Triggers = s
				p.svc, _ = New(p.scfg)
				_, stop := p.run()
				m := request.Meta{Caller: "shop", Route: route.name, Key: "k"}
				if _, err := route.call(p.svc, t.Context(), m, body); notify.KindOf(err) != notify.KindUnavailable {
					t.Fatalf("the first writer: %v", err)
				}
				pass(after)
				s.on = nil
				a, err := route.call(p.svc, t.Context(), m, body)
				if err != nil {
					t.Fatal(err)
				}
				pass(15 * time.Second) // long before a reconciler would find it
				for _, id := range idsIn(t, a.Body) {
					p.want(id, engine.TriggerFired)
					if n := len(p.sink.of(id)); n != 1 {
						t.Errorf("%s, repeated after %v: %d calls", route.name, after, n)
					}
				}
				stop()
				p.wheel.stop()
			}
		}
	})
}

// A message arrives while the message of a dead writer is being dropped. It is not taken for a copy
// of that message.
func TestMessageBehindAnOrphan(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		ctx := t.Context()
		reading := make(chan struct{})
		var once sync.Once
		p.cfg.Triggers = &shaky{Triggers: p.store.Triggers(), on: func(method string, _ []string) slip {
			if method != "Get" {
				return slip{}
			}
			return slip{after: func() { // no row: the message is an orphan, and too old
				once.Do(func() {
					close(reading)
					time.Sleep(2 * time.Second)
				})
			}}
		}}
		now := time.Now()
		id := notify.NewBase(now)
		m := engine.Message{Body: message{base: id, attempt: 1, caller: callerDigest("shop")}.encode()}
		if err := p.queue.Enqueue(ctx, []engine.Message{m}); err != nil {
			t.Fatal(err)
		}
		pass(5 * time.Minute)
		p.run()
		<-reading
		// The second writer sends its message, and then stores its row.
		if err := p.queue.Enqueue(ctx, []engine.Message{m}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		ms := now.UnixMilli()
		row := engine.Trigger{ID: idOf(id), Caller: "shop", URL: base("shop") + "x", State: engine.TriggerPending, Created: ms, FireAt: ms, NextAt: ms}
		if _, err := p.store.Triggers().Create(ctx, []engine.Trigger{row}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		p.want(row.ID, engine.TriggerFired)
	})
}
