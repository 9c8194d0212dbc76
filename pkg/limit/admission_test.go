package limit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// bulkBody is a body of these tests, and bulkWork how long it takes a processor.
const (
	bulkBody = 1 << 20
	bulkWork = 100 * time.Millisecond
)

// crowd offers large requests to an Admission.
type crowd struct {
	t *testing.T
	a *Admission

	mu      sync.Mutex
	done    int
	refused []error
	order   []notify.Category // of the ends
	wg      sync.WaitGroup
}

// send sends one and returns when it is let in or refused.
func (c *crowd) send(cat notify.Category) {
	in, err := c.a.Enter(bulkBody, nil)
	if err != nil {
		c.refuse(err)
		return
	}
	c.wg.Go(func() {
		defer in.Leave()
		in.Arrived()
		out, err := c.a.Decode(c.t.Context(), cat)
		if err != nil {
			c.refuse(err)
			return
		}
		time.Sleep(bulkWork)
		out()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.done++
		c.order = append(c.order, cat)
	})
	synctest.Wait()
}

func (c *crowd) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = append(c.refused, err)
}

// count returns how many were done so far, and the refusals.
func (c *crowd) count() (done int, refused []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done, slices.Clone(c.refused)
}

// overload sends four times what can be done for a while, with singles beside it.
func (c *crowd) overload(long time.Duration) {
	for range int(long / (bulkWork / 4)) {
		c.send(notify.Marketing)
		if err := c.a.Single(notify.OTP); err != nil {
			c.t.Fatalf("an otp is refused: %v", err)
		}
		time.Sleep(bulkWork / 4)
	}
}

func TestAdmissionUnderOverload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []Overload
		a := NewAdmission(AdmissionConfig{Processors: 2, Changed: func(o Overload) { told = append(told, o) }})
		c := &crowd{t: t, a: a}
		c.overload(time.Minute)

		// With singles about there is one processor for bodies: 600 in a minute.
		done, refused := c.count()
		if done < 560 || done > 640 {
			t.Errorf("%d bodies were done in a minute by one processor that does 10 a second", done)
		}
		longest := time.Duration(0)
		for _, err := range refused {
			e, ok := errors.AsType[*notify.Error](err)
			if !ok || e.Kind != notify.KindUnavailable || e.Code != "overloaded" || e.RetryAfter < time.Second || e.RetryAfter > maxRetryAfter {
				t.Fatalf("a refusal is %#v", err)
			}
			longest = max(longest, e.RetryAfter)
		}
		if longest != maxRetryAfter {
			t.Errorf("those that are refused are told %s at most, and three times as many are refused as done", longest)
		}
		if o := a.Overload(); o.Since.IsZero() || o.Refused != int64(len(refused)) || o.Wait > 3*time.Second/2 {
			t.Errorf("in it: %+v, %d were refused", o, len(refused))
		}
		for range 10 { // until one is refused at this moment
			c.send(notify.Marketing)
		}
		if err := a.Single(notify.Marketing); notify.KindOf(err) != notify.KindUnavailable {
			t.Errorf("a single of a campaign in an overload: %v", err)
		}

		c.wg.Wait()
		before := len(c.refused)
		time.Sleep(2 * overloadQuiet)
		for range 5 {
			c.send(notify.Digest)
		}
		c.wg.Wait()
		if len(c.refused) != before {
			t.Errorf("%d are refused after it", len(c.refused)-before)
		}
		if len(told) != 2 || told[0].Since.IsZero() || !told[1].Since.IsZero() || told[1].Lasted < 50*time.Second || told[1].Refused != int64(before+1) {
			t.Errorf("it was told of as %+v", told)
		}
	})
}

// While no single requests come, all processors decode bodies.
func TestAdmissionLeavesAProcessorToSingles(t *testing.T) {
	t.Parallel()
	for _, singles := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a := NewAdmission(AdmissionConfig{Processors: 2})
			c := &crowd{t: t, a: a}
			if singles {
				if err := a.Single(notify.Transactional); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			for range 6 {
				c.send(notify.Marketing)
			}
			c.wg.Wait()
			want := 3 * bulkWork
			if singles {
				want = 6 * bulkWork
			}
			if took := time.Since(began); took != want {
				t.Errorf("six bodies of %s took two processors %s with singles about: %v", bulkWork, took, singles)
			}
		})
	}
}

func TestAdmissionTakesUrgentBodiesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{t: t, a: NewAdmission(AdmissionConfig{})}
		for _, cat := range []notify.Category{notify.Digest, notify.Marketing, notify.Digest, notify.Alert, notify.Transactional} {
			c.send(cat)
		}
		c.wg.Wait()
		if want := []notify.Category{notify.Digest, notify.Alert, notify.Transactional, notify.Marketing, notify.Digest}; !slices.Equal(c.order, want) {
			t.Errorf("the order is %v, want %v", c.order, want)
		}
	})
}

// A log that becomes slow is given less at once, what waits for it is refused before a
// time-out, and it is given more again once it is fast.
func TestAdmissionFollowsTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := NewAdmission(AdmissionConfig{})
		appends := func(n int, slow time.Duration, failed error) (refused int) {
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() {
					done, err := a.Append(t.Context(), notify.Marketing, bulkBody)
					if err != nil {
						mu.Lock()
						defer mu.Unlock()
						refused++
						return
					}
					time.Sleep(slow)
					done(failed)
				})
			}
			wg.Wait()
			return refused
		}
		if n := appends(64, 10*time.Millisecond, nil); n != 0 || a.Overload().Append <= startInFlight {
			t.Errorf("a fast log: %d refused, %d bytes at once", n, a.Overload().Append)
		}
		for range 20 {
			appends(4, time.Second, nil)
		}
		if got := a.Overload().Append; got != minInFlight {
			t.Errorf("a slow log is given %d bytes at once, want %d", got, minInFlight)
		}
		began := time.Now()
		if n := appends(16, time.Second, nil); n == 0 || time.Since(began) > 4*time.Second {
			t.Errorf("of 16 s of work %d requests were refused, the last after %s", n, time.Since(began))
		}
		for range 200 {
			appends(8, 10*time.Millisecond, nil)
		}
		if got := a.Overload().Append; got <= 2*minInFlight {
			t.Errorf("the log is fast again and is given %d bytes at once", got)
		}
		was := a.Overload().Append
		if appends(1, 0, notify.Unavailable("log", 0, nil)); a.Overload().Append >= was {
			t.Error("an append that failed changed nothing")
		}
	})
}

// A body that comes slowly keeps no other out.
func TestAdmissionForgetsSlowBodies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := NewAdmission(AdmissionConfig{})
		slow, err := a.Enter(64<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &crowd{t: t, a: a}
		for range 30 {
			c.send(notify.Marketing)
			time.Sleep(bulkWork)
		}
		c.wg.Wait()
		if len(c.refused) > 0 {
			t.Errorf("%d requests are refused: %v", len(c.refused), c.refused[0])
		}
		if got := a.Overload().Ahead; got != 0 {
			t.Errorf("%d bytes are ahead, of a body that does not come", got)
		}
		slow.Arrived()
		if got := a.Overload().Ahead; got != 64<<20 {
			t.Errorf("%d bytes are ahead, and the slow body has come", got)
		}
		slow.Leave()
		if o := a.Overload(); o.Ahead != 0 || o.Wait != 0 || !o.Since.IsZero() {
			t.Errorf("at the end: %+v", o)
		}
	})
}

func TestAdmissionEndsWithTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := NewAdmission(AdmissionConfig{})
		out, err := a.Decode(t.Context(), notify.Digest)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if _, err := a.Decode(ctx, notify.Digest); !errors.Is(err, context.Canceled) {
			t.Errorf("a request that is gone: %v", err)
		}
		out()
		if out, err = a.Decode(t.Context(), notify.Digest); err != nil {
			t.Error(err)
		}
		out()
		var none *Admission
		if in, err := none.Enter(1, nil); err != nil || none.Single(notify.Digest) != nil {
			t.Errorf("without an Admission: %v", err)
		} else {
			in.Arrived()
			in.Leave()
		}
	})
}
