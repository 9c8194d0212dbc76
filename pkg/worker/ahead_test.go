package worker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// A slow provider gets from one partition as many receivers as it may have at once, although that
// is more than the windows of the partition allow. No more receivers are claimed. A provider that
// is fast, or was not called yet, gets only the windows of the partition.
func TestSlowProviderIsFilled(t *testing.T) {
	for name, c := range map[string]struct {
		lane     notify.Lane
		latency  time.Duration
		inFlight int
		envs     func(p *plant) []notify.Envelope
		first    int // receivers claimed after a second
		then     int // receivers claimed after eleven seconds
	}{
		"singles, claimed first":   {pushLane, 10 * time.Second, 200, singles, 20, 200},
		"singles, claimed last":    {smsLane, 10 * time.Second, 200, singles, 20, 200},
		"a fan-out":                {pushLane, 10 * time.Second, 200, fan, 20, 200},
		"the provider holds fewer": {pushLane, 10 * time.Second, 5, singles, 20, 20},
		"fast":                     {pushLane, 600 * time.Millisecond, 200, singles, 20, 20},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, c.lane, func(cfg *Config) { cfg.Window, cfg.Ahead, cfg.InFlight = 10, 2, c.inFlight })
				p.prov.set(c.latency, nil)
				envs := c.envs(p)
				p.send(envs...)
				claimed := func() (n int) {
					for i := range envs {
						for _, row := range p.rows(&envs[i]) {
							if !row.Done {
								n += int(row.StartedUpTo - row.DoneUpTo)
							}
						}
					}
					return n
				}
				pass(time.Second)
				if n := claimed(); n != c.first {
					t.Errorf("%d receivers are claimed at first, want %d", n, c.first)
				}
				pass(10 * time.Second)
				if n := claimed(); n != c.then {
					t.Errorf("%d receivers are claimed, want %d", n, c.then)
				}
				pass(time.Hour)
				for i := range envs {
					for r := range envs[i].Count {
						if n, again := p.prov.took(envs[i].ID(r)); n != 1 || again != 0 {
							t.Fatalf("%s: taken %d times", envs[i].ID(r), n+again)
						}
					}
				}
			})
		})
	}
}

func singles(p *plant) (es []notify.Envelope) {
	for _, u := range apart(500) {
		es = append(es, p.envelope(notify.Transactional, u))
	}
	return es
}

func fan(p *plant) []notify.Envelope {
	return []notify.Envelope{p.envelope(notify.Transactional, userIDs(500)...)}
}

// apart returns users that do not wait for each other in the order.
func apart(n int) (us []string) {
	taken := map[uint64]bool{}
	for i := 0; len(us) < n; i++ {
		if slot := notify.HashUser([]byte(name(i))) & orderSlotMax; !taken[slot] {
			taken[slot] = true
			us = append(us, name(i))
		}
	}
	return us
}

// Claims of other partitions count. But a partition can always use its own windows, whatever the
// other partitions have claimed.
func TestPartitionsShareTheClaims(t *testing.T) {
	t.Parallel()
	all := &openReceivers{limit: 10}
	a, b := newQuota(4), newQuota(4)
	a.shared, b.shared = all, all
	take := func(q *quota, n int, want bool) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		stop() // a goroutine that cannot have it does not wait
		if _, err := q.acquire(ctx, notify.OTP, n); (err == nil) != want {
			t.Errorf("take %d: %v, with %d claimed by all", n, err, all.held)
		}
	}
	take(a, 4, true)
	take(a, 1, false) // the provider is fast
	for range 8 {
		all.noteCall(2 * slowCall)
	}
	take(a, 4, true) // more than its own windows
	take(a, 4, false)
	take(a, 2, true)
	take(b, 4, true) // its own windows, although the provider is full
	take(b, 1, false)
	a.release(6)
	take(b, 2, true)
	take(b, 1, false)
	for range 16 {
		all.noteCall(slowCall / 100)
	}
	a.release(4)
	take(b, 1, false) // fast again
	b.release(6)
	if all.held != 0 || a.free != 4 || b.free != 4 {
		t.Errorf("left over: %d, %d, %d", all.held, a.free, b.free)
	}
}

// A goroutine that is served at the moment it gives up gives back what it got.
func TestServedWhileGivingUp(t *testing.T) {
	in(t, func(t *testing.T) {
		all := &openReceivers{limit: 10}
		q := newQuota(4)
		q.shared = all
		if _, err := q.acquire(t.Context(), notify.OTP, 4); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var err error
		go func() { _, err = q.acquire(ctx, notify.OTP, 1) }()
		synctest.Wait()
		q.mu.Lock() // the waiting goroutine needs this lock to give up
		stop()
		q.giveBack(4)
		q.serve()
		q.mu.Unlock()
		synctest.Wait()
		if err == nil {
			t.Error("he did not give up")
		}
		if q.free != 4 || all.held != 0 {
			t.Errorf("%d free, %d held", q.free, all.held)
		}
	})
}
