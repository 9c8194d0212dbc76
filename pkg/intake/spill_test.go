package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func logDown() error { return notify.Unavailable("log", time.Second, errDown) }

func TestLogDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.log.set(logDown())
	for category, spilled := range map[string]bool{"otp": true, "alert": true, "transactional": false, "marketing": false, "digest": false} {
		before := r.spill.len()
		a, err := r.Single(t.Context(), request.Meta{Caller: "c", Key: category}, []byte(single(`"category":"`+category+`"`)))
		if spilled {
			if err != nil || a.Status != 201 || r.spill.len() != before+1 {
				t.Errorf("%s: %+v, %v, %d spilled; want 201", category, a, err, r.spill.len()-before)
			}
			if again, err := r.Single(t.Context(), request.Meta{Caller: "c", Key: category}, []byte(single(`"category":"`+category+`"`))); err != nil || !again.Replayed {
				t.Errorf("%s again: %+v, %v", category, again, err)
			}
			continue
		}
		if notify.KindOf(err) != notify.KindUnavailable || notify.RetryAfterOf(err) <= 0 || r.spill.len() != before {
			t.Errorf("%s: %v, want unavailable with Retry-After", category, err)
		}
	}
	// A fan-out of alerts spills its chunks.
	before := r.spill.len()
	body := strings.Replace(string(fanBodyJSON(100, false)), "marketing", "alert", 1)
	if a, err := r.Fanout(t.Context(), request.Meta{Caller: "c"}, []byte(body)); err != nil || parseFan(t, a).Accepted != 100 || r.spill.len() != before+6 {
		t.Errorf("fan-out of alerts: %s, %v, %d spilled", a.Body, err, r.spill.len()-before)
	}
}

func TestSpillFull(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{SpillBytes: 400})
	r.log.set(logDown())
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		_, err = r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody))
	}
	if notify.KindOf(err) != notify.KindUnavailable || n < 2 || n > 8 {
		t.Errorf("after %d messages: %v, want unavailable once the buffer is full", n, err)
	}
}

// A refusal of the log that is no outage is not spilled.
func TestLogRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.log.set(&notify.Error{Kind: notify.KindTooLarge, Code: "record_too_large"})
	if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody)); notify.KindOf(err) != notify.KindTooLarge || r.spill.len() != 0 {
		t.Errorf("%v, %d spilled", err, r.spill.len())
	}
}

// A caller that hangs up does not look like a log that is away.
func TestCallerHangsUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	r.log.before = nil
	honest := logFunc(func(ctx context.Context) error {
		cancel() // while the append is under way
		if err := ctx.Err(); err != nil {
			return notify.Unavailable("log", 0, err)
		}
		return nil
	})
	st := r.stores
	st.Log = honest
	s, err := New(st, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Single(ctx, request.Meta{Caller: "c", Key: "k"}, []byte(singleBody)); err != nil || r.spill.len() != 0 {
		t.Errorf("%v, %d spilled", err, r.spill.len())
	}
	if row := r.idem.edit(t, func(*engine.Reservation) {}); !row.Done {
		t.Error("the reservation is not finished")
	}
}

// TestNothingOvertakes: what was spilled is in the log before anything of its
// lane that was sent after its 201, through the return of the log and the end
// of spilling.
func TestNothingOvertakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		n := 0
		send := func(category string) error {
			_, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(single(fmt.Sprintf(`"category":%q,"content":{"title":"%d"}`, category, n))))
			n++
			return err
		}
		r.log.set(logDown())
		for range 5 {
			if err := send("otp"); err != nil {
				t.Fatal(err)
			}
		}
		r.log.set(nil) // the log is back, and the buffer is not drained yet
		for range 5 {
			if err := send("alert"); err != nil {
				t.Fatal(err)
			}
		}
		if len(r.log.records()) != 0 {
			t.Fatal("a critical message overtook spilled ones")
		}
		if err := send("transactional"); notify.KindOf(err) != notify.KindUnavailable {
			t.Errorf("transactional beside spilled codes: %v, want unavailable: it shares their lane", err)
		}
		if err := send("marketing"); err != nil {
			t.Errorf("marketing has a lane of its own: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		d := &Drainer{Spill: r.spill, Log: r.log, Batch: 3}
		go func() { done <- d.Run(ctx) }()
		time.Sleep(time.Second)
		synctest.Wait()
		if r.spill.len() != 0 {
			t.Errorf("%d left in the buffer", r.spill.len())
		}
		if err := send("otp"); err != nil {
			t.Fatal(err)
		}
		if err := send("transactional"); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		last, count := -1, 0
		for _, e := range r.log.envelopes(t) {
			if e.Category.Bulk() {
				continue
			}
			var i int
			fmt.Sscan(e.Content.Title, &i)
			if i <= last {
				t.Errorf("message %d follows %d", i, last)
			}
			last = i
			count++
		}
		if count != 12 {
			t.Errorf("%d messages of the fast lane in the log, want 12", count)
		}
	})
}

// The drainer drops nothing the log has not acknowledged.
func TestDrainerWaitsForLog(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.log.set(logDown())
	for range 3 {
		if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody)); err != nil {
			t.Fatal(err)
		}
	}
	d := &Drainer{Spill: r.spill, Log: r.log}
	if n, err := d.Drain(t.Context()); err == nil || n != 0 || r.spill.len() != 3 {
		t.Errorf("drained %d, %v, %d left", n, err, r.spill.len())
	}
	r.log.set(nil)
	if n, err := d.Drain(t.Context()); err != nil || n != 3 || r.spill.len() != 0 || len(r.log.records()) != 3 {
		t.Errorf("drained %d, %v, %d left", n, err, r.spill.len())
	}
}

// A mixed batch while the log is away: codes are kept, the others' results are
// errors, and a repeat of the key gives them another chance under the same ids.
func TestMixedBatchLogDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	body := []byte("[" + single(`"category":"otp"`) + "," + single(`"category":"transactional"`) + "," + single(`"category":"marketing"`) + "]")
	m := request.Meta{Caller: "c", Key: "k"}
	type result struct {
		ID    string `json:"notification_id"`
		Error *struct{ Code string }
	}
	send := func() (out struct {
		Results            []result
		Accepted, Rejected int
	}) {
		t.Helper()
		a, err := r.Batch(t.Context(), m, body)
		if err != nil || a.Replayed {
			t.Fatalf("%+v, %v", a, err)
		}
		if err := json.Unmarshal(a.Body, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	r.log.set(logDown())
	first := send()
	if first.Accepted != 1 || first.Results[0].ID == "" || first.Results[1].Error == nil || first.Results[1].Error.Code != "log" || r.spill.len() != 1 {
		t.Fatalf("%+v, %d spilled", first, r.spill.len())
	}
	r.log.set(nil)
	if _, err := (&Drainer{Spill: r.spill, Log: r.log}).Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := send()
	if second.Accepted != 3 || second.Results[0].ID != first.Results[0].ID {
		t.Errorf("then %+v, first %+v", second, first)
	}
	keys := map[notify.RowKey]int{}
	for _, e := range r.log.envelopes(t) {
		keys[e.Key()]++
	}
	if len(keys) != 3 {
		t.Errorf("%d distinct chunks in the log, want 3", len(keys))
	}
	if a, err := r.Batch(t.Context(), m, body); err != nil || !a.Replayed {
		t.Errorf("at last: %+v, %v", a, err)
	}
}

// A spill buffer that cannot be read does not stop codes while the log is there.
func TestSpillUnreadable(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.spill.stats = errDown
	if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody)); err != nil || len(r.log.records()) != 1 {
		t.Errorf("%v", err)
	}
}

// slowSpill answers nothing.
type slowSpill struct{ Spill }

func (slowSpill) Stats(ctx context.Context) (records, bytes, oldest int64, err error) {
	<-ctx.Done()
	return 0, 0, 0, notify.Unavailable("redis", 0, ctx.Err())
}

// A spill buffer that does not answer holds up one request in a while, not each.
func TestSpillSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		r.Service.stores.Spill = slowSpill{r.spill}
		began := time.Now()
		for range 100 {
			if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody)); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d > spillReadTimeout {
			t.Errorf("100 requests waited %v", d)
		}
		time.Sleep(time.Second)
		r.Service.stores.Spill = r.spill
		if err := r.spill.Push(t.Context(), []engine.Spilled{{}}, 1<<20); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(single(`"category":"otp"`))); err != nil || r.spill.len() != 2 {
			t.Errorf("%v, %d spilled: it is asked again", err, r.spill.len())
		}
	})
}

// What waits in the buffer is not overtaken because the buffer is slow; after a
// while the log decides.
func TestSpillSlowWhileItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		otp := func() {
			t.Helper()
			if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(single(`"category":"otp"`))); err != nil {
				t.Fatal(err)
			}
		}
		r.log.fail = notify.Unavailable("log", 0, errDown)
		otp()
		r.log.fail = nil
		r.Service.stores.Spill = slowSpill{r.spill}
		for range 10 {
			otp()
		}
		if n := len(r.log.records()); n != 0 || r.spill.len() != 11 {
			t.Errorf("%d went past %d that wait", n, r.spill.len())
		}
		time.Sleep(spillTrust + time.Second)
		otp()
		if n := len(r.log.records()); n != 1 {
			t.Errorf("%d in the log: for how long is it waited?", n)
		}
		// Seen empty, it is not waited for at all.
		r.Service.stores.Spill = r.spill
		if err := r.spill.Drop(t.Context(), 1<<62); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		otp()
		r.Service.stores.Spill = slowSpill{r.spill}
		otp()
		if n := len(r.log.records()); n != 3 {
			t.Errorf("%d in the log, want 3", n)
		}
	})
}

func TestLaterDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.later.fail = errors.New("down")
	at := time.Now().Add(time.Hour).Format(time.RFC3339)
	if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(single(`"scheduled_at":"`+at+`"`))); notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("scheduled: %v, want unavailable", err)
	}
	a, err := r.Batch(t.Context(), request.Meta{Caller: "c"}, []byte("["+single(`"scheduled_at":"`+at+`"`)+","+singleBody+"]"))
	if err != nil || !strings.HasSuffix(string(a.Body), `"accepted":1,"rejected":1}`) {
		t.Errorf("batch: %s, %v; want the immediate one accepted", a.Body, err)
	}
}
