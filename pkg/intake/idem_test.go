package intake

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// entry is one of the three ways in, with a body it takes.
type entry struct {
	name string
	call func(*Service, context.Context, request.Meta, []byte) (request.Answer, error)
	body []byte
}

func requests() []entry {
	var batch [][]byte
	for i := range 20 {
		batch = append(batch, []byte(single(fmt.Sprintf(`"to":{"user_id":"u%d"}`, i))))
	}
	return []entry{
		{"single", (*Service).Single, []byte(singleBody)},
		{"batch", (*Service).Batch, slicesJoin("[", batch, "]")},
		{"fanout", (*Service).Fanout, fanBodyJSON(300, false)},
	}
}

func slicesJoin(open string, parts [][]byte, end string) []byte {
	return []byte(open + string(bytes.Join(parts, []byte(","))) + end)
}

func TestReplay(t *testing.T) {
	t.Parallel()
	for _, q := range requests() {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			m := request.Meta{Caller: "c", Key: "k", Route: q.name}
			first, err := q.call(r.Service, t.Context(), m, q.body)
			if err != nil || first.Replayed {
				t.Fatalf("first: %+v, %v", first, err)
			}
			appended := len(r.log.records())
			again, err := q.call(r.Service, t.Context(), m, q.body)
			if err != nil || !again.Replayed || again.Status != first.Status || !bytes.Equal(again.Body, first.Body) {
				t.Errorf("again: %+v, %v; want %s replayed", again, err, first.Body)
			}
			_, err = q.call(r.Service, t.Context(), m, append(bytes.Clone(q.body), ' '))
			refused(t, err, notify.KindMismatch, "idempotency_mismatch", "Idempotency-Key")
			_, err = q.call(r.Service, t.Context(), m, []byte(`{`))
			refused(t, err, notify.KindMismatch, "idempotency_mismatch", "Idempotency-Key")
			if n := len(r.log.records()); n != appended {
				t.Errorf("%d records after the repeats, want %d", n, appended)
			}
			m.Caller = "other" // its keys are its own
			if a, err := q.call(r.Service, t.Context(), m, q.body); err != nil || a.Replayed {
				t.Errorf("another caller: %+v, %v", a, err)
			}
		})
	}
}

// A replay does not judge the body again: what was admitted then may be past
// its deadline now.
func TestReplayAfterExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		m := request.Meta{Caller: "c", Key: "k"}
		body := []byte(single(`"expires_at":"2000-01-01T00:01:00Z"`))
		if _, err := r.Single(t.Context(), m, body); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if a, err := r.Single(t.Context(), m, body); err != nil || !a.Replayed {
			t.Errorf("%+v, %v", a, err)
		}
		time.Sleep(23 * time.Hour) // the key is forgotten after a day, and the body is judged
		_, err := r.Single(t.Context(), m, body)
		refused(t, err, notify.KindInvalid, "expires_in_past", "expires_at")
	})
}

func TestKeysOfScheduledAreKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		m := request.Meta{Caller: "c", Key: "k"}
		at := time.Now().Add(72 * time.Hour)
		if _, err := r.Single(t.Context(), m, []byte(single(`"scheduled_at":"`+at.Format(time.RFC3339)+`"`))); err != nil {
			t.Fatal(err)
		}
		row := r.idem.edit(t, func(*engine.Reservation) {})
		if want := at.Add(time.Hour).UnixMilli(); row.Expires != want || row.Fire != at.UnixMilli() {
			t.Errorf("kept until %d, fires %d; want %d, %d", row.Expires, row.Fire, want, at.UnixMilli())
		}
	})
}

func TestOneBasePerKey(t *testing.T) {
	t.Parallel()
	for _, q := range requests() {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			var wg sync.WaitGroup
			var mu sync.Mutex
			bodies := map[string]int{}
			for range 64 {
				wg.Go(func() {
					for {
						a, err := q.call(r.Service, t.Context(), request.Meta{Caller: "c", Key: "k"}, q.body)
						if notify.KindOf(err) == notify.KindConflict && notify.RetryAfterOf(err) > 0 {
							continue
						}
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						bodies[string(a.Body)]++
						mu.Unlock()
						return
					}
				})
			}
			wg.Wait()
			if len(bodies) != 1 || r.log.appends != 1 {
				t.Errorf("%d different answers, %d appends; want one each", len(bodies), r.log.appends)
			}
		})
	}
}

// crash stands for a kill of the process: the goroutine ends where it is.
type crash struct{}

// dies calls fn and reports whether it crashed.
func dies(fn func()) (died bool) {
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(crash); !ok {
				panic(v)
			}
			died = true
		}
	}()
	fn()
	return false
}

// TestKill kills the process around the append, and repeats the request with
// the same key: same ids, same chunks, the same bytes in every record, so that
// delivery, which goes by chunk, happens once.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, q := range requests() {
		for _, point := range []string{"between reservation and append", "between append and finish"} {
			for _, retry := range []string{"after the lease", "too early", "at once, keys exclusive"} {
				t.Run(q.name+" "+point+", "+retry, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						r := newRig(t, Config{Owner: "a"})
						kill := func() { panic(crash{}) }
						var first []log.Record
						r.log.before = func(recs []log.Record) {
							for _, rec := range recs {
								rec.Key, rec.Value = bytes.Clone(rec.Key), bytes.Clone(rec.Value)
								first = append(first, rec)
							}
							if strings.HasSuffix(point, "append") {
								kill()
							}
						}
						r.log.after = func() error { kill(); return nil }
						m := request.Meta{Caller: "c", Key: "k"}
						if !dies(func() { q.call(r.Service, t.Context(), m, q.body) }) {
							t.Fatal("it did not crash")
						}
						r.log.before, r.log.after = nil, nil
						appended := len(r.log.records())

						// The process starts again, with other settings and
						// partitions; what was admitted stays admitted.
						cfg := Config{Owner: "b", BlockReceivers: 1}
						if q.name != "batch" {
							r.parts = 9
						}
						cfg.Refuse = map[notify.Channel][]notify.Category{notify.Push: {notify.OTP, notify.Marketing}}
						if strings.Contains(retry, "exclusive") {
							cfg.Exclusive = true
						}
						s := r.service(t, cfg)
						if retry == "too early" {
							time.Sleep(29 * time.Second)
							_, err := q.call(s, t.Context(), m, q.body)
							refused(t, err, notify.KindConflict, "idempotency_running", "Idempotency-Key")
							if notify.RetryAfterOf(err) <= 0 || len(r.log.records()) != appended {
								t.Error("no Retry-After, or something was appended")
							}
							return
						}
						if retry == "after the lease" {
							time.Sleep(31 * time.Second)
						}
						a, err := q.call(s, t.Context(), m, q.body)
						if err != nil || a.Replayed {
							t.Fatalf("%+v, %v", a, err)
						}
						second := r.log.records()[appended:]
						if len(first) == 0 || !reflect.DeepEqual(first, second) {
							t.Errorf("%d records before the crash, %d after it, and they differ", len(first), len(second))
						}
						chunks := map[notify.RowKey]bool{}
						receivers := 0
						for _, e := range r.log.envelopes(t) {
							if !chunks[e.Key()] {
								receivers += int(e.Count)
							}
							chunks[e.Key()] = true
						}
						if want := map[string]int{"single": 1, "batch": 20, "fanout": 300}[q.name]; receivers != want {
							t.Errorf("%d receivers in distinct chunks, want %d", receivers, want)
						}
						if a, err := q.call(s, t.Context(), m, q.body); err != nil || !a.Replayed {
							t.Errorf("afterwards: %+v, %v", a, err)
						}
					})
				})
			}
		}
	}
}

// A fan-out for which the partitions are raised while it is read is cut for the new number:
// at the old one it would come behind what its users are sent next. A repeat keeps the
// number that its first request was cut for.
func TestFanoutAcrossARaise(t *testing.T) {
	t.Parallel()
	q := requests()[2]
	for _, key := range []string{"", "k"} {
		r := newRig(t, Config{})
		r.gate.asked = func() { r.parts = 12 } // between the plan and the append
		m := request.Meta{Caller: "c", Key: key}
		a, err := q.call(r.Service, t.Context(), m, q.body)
		if err != nil {
			t.Fatalf("key %q: %v", key, err)
		}
		most, receivers := uint16(0), uint32(0)
		for _, e := range r.log.envelopes(t) {
			most, receivers = max(most, e.Chunk.Partition), receivers+e.Count
		}
		if most < 6 || receivers != 300 {
			t.Errorf("key %q: %d receivers in partitions up to %d", key, receivers, most)
		}
		if key == "" {
			continue
		}
		r.gate.asked = nil
		if again, err := q.call(r.Service, t.Context(), m, q.body); err != nil || !again.Replayed || string(again.Body) != string(a.Body) {
			t.Errorf("the repeat: %+v, %v", again, err)
		}
	}
	r := newRig(t, Config{})
	r.gate.asked = func() { r.parts *= 2 }
	_, err := q.call(r.Service, t.Context(), request.Meta{Caller: "c", Key: "k"}, q.body)
	refused(t, err, notify.KindUnavailable, "partitions_raised", "")
	if r.stored() {
		t.Error("something is stored")
	}
}

// A batch spreads over topics whose counts one reservation cannot hold: where
// they were changed the repeat is refused, not sent twice.
func TestBatchLayoutChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	q := requests()[1]
	r.log.after = func() error { panic(crash{}) }
	m := request.Meta{Caller: "c", Key: "k"}
	if !dies(func() { q.call(r.Service, t.Context(), m, q.body) }) {
		t.Fatal("it did not crash")
	}
	r.log.after, r.parts = nil, 7
	r.idem.edit(t, func(row *engine.Reservation) { row.LeaseUntil = 0 })
	base := r.idem.edit(t, func(*engine.Reservation) {}).Base
	for range 3 { // the key stays taken: released, the next repeat would send all anew
		_, err := r.Batch(t.Context(), m, q.body)
		refused(t, err, notify.KindConflict, "layout_changed", "Idempotency-Key")
	}
	if len(r.log.records()) != 20 {
		t.Errorf("%d records, want the first 20", len(r.log.records()))
	}
	r.parts = 6 // changed back: the repeat ends what was begun
	if _, err := r.Batch(t.Context(), m, q.body); err != nil {
		t.Fatal(err)
	}
	if row := r.idem.edit(t, func(*engine.Reservation) {}); row.Base != base || !row.Done {
		t.Errorf("base %s, then %s, done %v", base, row.Base, row.Done)
	}
}

// What is switched on and off between a crash and the repeat changes no item: one
// that was refused is refused, one that is in the log already is answered so.
func TestBatchKeepsItsSwitches(t *testing.T) {
	t.Parallel()
	body := slicesJoin("[", [][]byte{
		[]byte(single(`"category":"digest"`)), []byte(single(`"category":"marketing"`)),
		[]byte(single(`"channel":"sms","category":"marketing","content":{"body":"b"}`)),
	}, "]")
	refusing := func(cat notify.Category) Config {
		return Config{Refuse: map[notify.Channel][]notify.Category{notify.Push: {cat}}}
	}
	m := request.Meta{Caller: "c", Key: "k"}
	r := newRig(t, refusing(notify.Digest))
	r.log.after = func() error { panic(crash{}) }
	if !dies(func() { _, _ = r.Batch(t.Context(), m, body) }) {
		t.Fatal("it did not crash")
	}
	r.log.after = nil
	first := r.log.records()
	base := r.idem.edit(t, func(row *engine.Reservation) { row.LeaseUntil = 0 }).Base
	other := refusing(notify.Marketing)
	other.SMS = []notify.Category{notify.Marketing}
	a, err := r.service(t, other).Batch(t.Context(), m, body)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Results []struct {
			Error struct{ Code string }
		}
	}
	if err := json.Unmarshal(a.Body, &got); err != nil || len(got.Results) != 3 {
		t.Fatalf("%s, %v", a.Body, err)
	}
	if got.Results[0].Error.Code != "category_refused" || got.Results[1].Error.Code != "" || got.Results[2].Error.Code != "category_not_for_channel" {
		t.Errorf("%s; want only the second accepted", a.Body)
	}
	if second := r.log.records()[len(first):]; !reflect.DeepEqual(first, second) {
		t.Errorf("%d records of base %s before the crash, %d after it, and they differ", len(first), base, len(second))
	}
}

// A request that stalled for longer than its lease and is then refused must not
// release the key: the request that took it over has appended under its ids.
func TestStalledRequestKeepsTheKey(t *testing.T) {
	t.Parallel()
	for _, q := range requests() {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Config{Owner: "b"})
				stalled, goOn := make(chan struct{}), make(chan struct{})
				late := r.service(t, Config{Owner: "a"})
				late.stores.Gate = gateFunc(func() error {
					close(stalled)
					<-goOn
					return &notify.Error{Kind: notify.KindUnavailable, Code: "log_full", RetryAfter: time.Second}
				})
				m := request.Meta{Caller: "c", Key: "k"}
				end := make(chan error)
				go func() {
					_, err := q.call(late, t.Context(), m, q.body)
					end <- err
				}()
				<-stalled
				time.Sleep(31 * time.Second)
				r.log.before = func([]log.Record) { // the other is in the middle of it
					r.log.before = nil
					close(goOn)
					if err := <-end; notify.KindOf(err) != notify.KindUnavailable {
						t.Errorf("the stalled request: %v", err)
					}
				}
				first, err := q.call(r.Service, t.Context(), m, q.body)
				if err != nil {
					t.Fatal(err)
				}
				again, err := q.call(r.Service, t.Context(), m, q.body)
				if err != nil || !again.Replayed || !bytes.Equal(again.Body, first.Body) {
					t.Errorf("%+v, %v; want %s replayed", again, err, first.Body)
				}
			})
		})
	}
}

func TestRefusedReleasesKey(t *testing.T) {
	t.Parallel()
	for _, q := range requests() {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			m := request.Meta{Caller: "c", Key: "k"}
			for _, bad := range []string{`{`, `{"nope":1}`, `[`} {
				if _, err := q.call(r.Service, t.Context(), m, []byte(bad)); notify.KindOf(err) != notify.KindInvalid {
					t.Fatalf("%s: %v", bad, err)
				}
			}
			if r.idem.len() != 0 {
				t.Error("a refused request holds its key")
			}
			if _, err := q.call(r.Service, t.Context(), m, q.body); err != nil {
				t.Error(err)
			}
		})
	}
}

// Where the keys are one process's, its own running requests still hold theirs.
func TestExclusiveKeysOfTheLiving(t *testing.T) {
	t.Parallel()
	for _, q := range requests() {
		r := newRig(t, Config{Exclusive: true})
		m := request.Meta{Caller: "c", Key: "k"}
		asked := false
		r.log.before = func([]log.Record) {
			if asked = !asked; asked {
				_, err := q.call(r.Service, t.Context(), m, q.body)
				refused(t, err, notify.KindConflict, "idempotency_running", "Idempotency-Key")
			}
		}
		if _, err := q.call(r.Service, t.Context(), m, q.body); err != nil || !asked {
			t.Errorf("%s: %v", q.name, err)
		}
	}
}

// A process that dies between the reservation of a refused body and its
// release leaves a key that holds no layout; a repeat judges the body again.
func TestTakeOverOfRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		m := request.Meta{Caller: "c", Key: "k"}
		body := []byte(single(`"channel":"sms","category":"marketing","content":{"body":"b"}`))
		r.idem.fail["Release"] = errDown
		_, err := r.Single(t.Context(), m, body)
		refused(t, err, notify.KindInvalid, "category_not_for_channel", "category")
		r.idem.rows[engine.IdemKey{Caller: "c", Key: "k"}] = engine.Reservation{
			Key: engine.IdemKey{Caller: "c", Key: "k"}, Fingerprint: m.Fingerprint(body), Base: notify.NewBase(time.Now()),
			Accepted: time.Now().UnixMilli(), Owner: "dead", LeaseUntil: time.Now().UnixMilli(), Expires: time.Now().Add(time.Hour).UnixMilli(),
		}
		_, err = r.Single(t.Context(), m, body)
		refused(t, err, notify.KindInvalid, "category_not_for_channel", "category")
		r.idem.fail["Release"] = nil
		// An operator switches it on: now the same request is admitted.
		r.idem.edit(t, func(row *engine.Reservation) { row.LeaseUntil = 0; row.Version = 0 })
		s := r.service(t, Config{SMS: []notify.Category{notify.Marketing}})
		a, err := s.Single(t.Context(), m, body)
		if err != nil {
			t.Fatal(err)
		}
		row := r.idem.edit(t, func(*engine.Reservation) {})
		if !row.Done || row.Version != Version || row.Partitions != 6 || !bytes.Contains(a.Body, []byte(row.Base.String())) {
			t.Errorf("reservation %+v, answer %s", row, a.Body)
		}
	})
}

// Where the log fails, what was appended is not known: the key keeps its ids,
// and the next try need not wait for the lease.
func TestFailedAppendKeepsIDs(t *testing.T) {
	t.Parallel()
	for _, q := range requests() {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			r.stores.Spill = nil
			m := request.Meta{Caller: "c", Key: "k"}
			r.log.set(notify.Unavailable("log", time.Second, errDown))
			_, err := q.call(r.Service, t.Context(), m, q.body)
			if notify.KindOf(err) != notify.KindUnavailable || notify.RetryAfterOf(err) <= 0 {
				t.Fatalf("%v, want unavailable with Retry-After", err)
			}
			base := r.idem.edit(t, func(*engine.Reservation) {}).Base
			r.log.set(nil)
			// A repeat that is refused before its append says nothing about the first
			// append. The outcome of that one is unknown, so the key stays taken.
			r.gate.err = &notify.Error{Kind: notify.KindUnavailable, Code: "log_full", RetryAfter: time.Second}
			if _, err = q.call(r.Service, t.Context(), m, q.body); notify.KindOf(err) != notify.KindUnavailable {
				t.Fatalf("behind a shut gate: %v", err)
			}
			r.gate.err = nil
			if _, err = q.call(r.Service, t.Context(), m, q.body); err != nil {
				t.Fatal(err)
			}
			if row := r.idem.edit(t, func(*engine.Reservation) {}); row.Base != base || !row.Done {
				t.Errorf("base %s, then %s, done %v", base, row.Base, row.Done)
			}
		})
	}
}

// An answer that cannot be kept is given: the records are durable.
func TestFinishFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	m := request.Meta{Caller: "c", Key: "k"}
	r.idem.fail["Finish"] = errDown
	first, err := r.Single(t.Context(), m, []byte(singleBody))
	if err != nil {
		t.Fatal(err)
	}
	r.idem.fail["Finish"] = nil
	again, err := r.Single(t.Context(), m, []byte(singleBody))
	if err != nil || !bytes.Equal(first.Body, again.Body) {
		t.Errorf("%s, then %s, %v", first.Body, again.Body, err)
	}
	if recs := r.log.records(); len(recs) != 2 || !bytes.Equal(recs[0].Value, recs[1].Value) {
		t.Errorf("%d records, want the same one twice", len(recs))
	}
}

// Keys cannot be looked up: a caller that would rather send twice than not is
// answered all the same, and told.
func TestReserveFailsAtLeastOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.idem.fail["Reserve"] = errDown
	m := request.Meta{Caller: "c", Key: "k", AtLeastOnce: true}
	for n := 1; n <= 2; n++ {
		if a, err := r.Single(t.Context(), m, []byte(singleBody)); err != nil || a.Status != 201 || !a.Unguarded || a.Replayed {
			t.Errorf("%+v, %v", a, err)
		}
		if got := len(r.log.records()); got != n {
			t.Errorf("%d records of %d requests", got, n)
		}
	}
	if _, err := r.Single(t.Context(), m, []byte(`{}`)); notify.KindOf(err) == notify.KindInternal || err == nil {
		t.Errorf("a body that breaks a rule: %v", err)
	}
	delete(r.idem.fail, "Reserve")
	if a, err := r.Single(t.Context(), m, []byte(singleBody)); err != nil || a.Unguarded {
		t.Errorf("with keys: %+v, %v", a, err)
	}
	if a, err := r.Single(t.Context(), m, []byte(singleBody)); err != nil || !a.Replayed {
		t.Errorf("repeated: %+v, %v", a, err)
	}
}

func TestReserveFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.idem.fail["Reserve"] = errDown
	if _, err := r.Single(t.Context(), request.Meta{Caller: "c", Key: "k"}, []byte(singleBody)); notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("%v, want unavailable", err)
	}
	if r.stored() {
		t.Error("stored without a reservation")
	}
	if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody)); err != nil {
		t.Errorf("without a key: %v", err)
	}
}
