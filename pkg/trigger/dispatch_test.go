package trigger

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
)

// A trigger is called once, at its time, with the payload that was accepted.
func TestFires(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.run()
		at := time.Now().Add(90 * time.Second)
		id := p.create("shop", `"delay_seconds":90,"payload":"order \"1\" é"`)
		pass(89 * time.Second)
		if n := p.sink.count(); n != 0 {
			t.Fatalf("%d calls before its time", n)
		}
		p.want(id, engine.TriggerPending)
		pass(2 * time.Second)
		calls := p.sink.of(id)
		if len(calls) != 1 || calls[0].at.Before(at) || calls[0].at.Sub(at) > 100*time.Millisecond {
			t.Fatalf("calls %+v, want one at %v", calls, at)
		}
		if want := `{"trigger_id":"` + id + `","payload":"order \"1\" é"}`; string(calls[0].body) != want {
			t.Errorf("body %s, want %s", calls[0].body, want)
		}
		if calls[0].attempt != "1" || calls[0].url != base("shop")+"x" {
			t.Errorf("attempt %s of %s", calls[0].attempt, calls[0].url)
		}
		row := p.want(id, engine.TriggerFired)
		if row.Attempts != 1 || row.Epoch != 1 || row.Ended == 0 || len(row.Log) != 1 || row.Log[0].Class != ClassOK || row.Log[0].Status != 200 {
			t.Errorf("row %+v", row)
		}
		// The row is written twice: for the claim and for the outcome.
		if n := p.evs.get("swaps"); n != 2 {
			t.Errorf("%d swaps for a fire, want 2", n)
		}
	})
}

// Attempts follow the retry schedule and are never earlier. After the last attempt the trigger
// becomes a dead letter.
func TestRetriesThenFails(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.sink.answer = func(string, string, int) (time.Duration, result) { return 0, status(http.StatusServiceUnavailable) }
		p.run()
		id := p.create("shop", `"delay_seconds":1`)
		pass(2 * time.Hour)
		calls := p.sink.of(id)
		if len(calls) != 6 {
			t.Fatalf("%d calls, want 6", len(calls))
		}
		for i, wait := range DefaultSchedule {
			got := calls[i+1].at.Sub(calls[i].at)
			if got < wait || got > wait+wait/10+time.Second {
				t.Errorf("wait %d was %v, want %v to a tenth more", i+1, got, wait)
			}
			if calls[i].attempt != strconv.Itoa(i+1) {
				t.Errorf("call %d says attempt %s", i+1, calls[i].attempt)
			}
		}
		row := p.want(id, engine.TriggerFailed)
		if row.Attempts != 6 || row.Reason != "http_503" || len(row.Log) != 6 || row.NextAt != 0 {
			t.Errorf("row %+v", row)
		}
		letters := p.dead.of(id)
		if len(letters) != 1 || letters[0].Reason != "http_503" || letters[0].Attempts != 6 || letters[0].Status != 503 {
			t.Errorf("letters %+v", letters)
		}
	})
}

// Retry-After is respected up to a limit, and the next attempt is never before it.
func TestRetryAfter(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.sink.answer = func(id, _ string, n int) (time.Duration, result) {
			r := status(http.StatusTooManyRequests)
			r.retryAfter = 5 * time.Minute
			if n == 2 {
				r.retryAfter = 100 * time.Hour
			}
			if n == 3 {
				return 0, ok
			}
			return 0, r
		}
		p.run()
		id := p.create("shop", `"delay_seconds":0`)
		pass(3 * time.Hour)
		calls := p.sink.of(id)
		if len(calls) != 3 {
			t.Fatalf("%d calls, want 3", len(calls))
		}
		if d := calls[1].at.Sub(calls[0].at); d < 5*time.Minute || d > 6*time.Minute {
			t.Errorf("waited %v, want 5m and a little", d)
		}
		if d := calls[2].at.Sub(calls[1].at); d < time.Hour || d > 67*time.Minute {
			t.Errorf("waited %v, want 1h and a little", d)
		}
		p.want(id, engine.TriggerFired)
	})
}

// After any answer other than 2xx the call is tried again. Final are only 410 and the
// statuses in the record of the caller.
func TestFinalAnswers(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.putCaller(engine.Caller{ID: "shop", CallbackURLs: []string{base("shop")}, FinalStatuses: []int{307, 400, 599}})
		final := map[int]bool{410: true, 400: true, 307: true, 599: true}
		ids := map[int]string{}
		codes := map[string]int{}
		p.sink.answer = func(id, _ string, n int) (time.Duration, result) { return 0, status(codes[id]) }
		for _, code := range []int{301, 302, 307, 400, 401, 403, 404, 408, 410, 413, 422, 425, 429, 500, 503, 599} {
			id := p.create("shop", `"delay_seconds":5`)
			ids[code], codes[id] = id, code
		}
		// The breaker is held closed, so that this test depends only on the statuses.
		d, _ := p.run()
		if _, err := d.HoldCircuit("shop", limit.HeldClosed); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Hour)
		for code, id := range ids {
			want := 6
			if final[code] {
				want = 1
			}
			if n := len(p.sink.of(id)); n != want {
				t.Errorf("%d: %d calls, want %d", code, n, want)
			}
			if row := p.want(id, engine.TriggerFailed); row.Reason != "http_"+strconv.Itoa(code) || row.Attempts != want {
				t.Errorf("%d: %+v", code, row)
			}
			if n := len(p.dead.of(id)); n != 1 {
				t.Errorf("%d: %d dead letters", code, n)
			}
		}
	})
}
