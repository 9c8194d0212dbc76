package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// stream is one kind of load: pushes to a number of users. The next push to a user is sent only
// after the answer to the previous push. For such pushes notifyd promises the order.
type stream struct {
	name       string
	categories []string // the pushes of a user use the categories in turn
	ordered    bool     // true: the ledger checks the order of each user's pushes
	profiles   bool     // true: requests have no address, so notifyd reads it from the profile
}

// Streams of immediate pushes.
var (
	critical = stream{name: "critical", categories: []string{"otp", "alert"}, ordered: true}
	rest     = stream{name: "rest", categories: []string{"transactional", "marketing"}}
)

// warm is how long the load runs before a fault. After this time every stage of notifyd has work.
const warm = 3 * time.Second

// prefix returns a prefix of user ids that no other run uses.
func prefix(name string) string { return fmt.Sprintf("%s-%d", name, time.Now().UnixMilli()) }

// answer is the result of one request.
type answer struct {
	stream string
	id     string    // empty: the request was refused or not answered
	sent   time.Time // before the request
	at     time.Time // after the answer
	err    error
}

// traffic is a running load and its answers so far.
type traffic struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	answers []answer
}

// perUser is the time between two pushes to the same user.
const perUser = 400 * time.Millisecond

// traffic starts the given streams, each at the configured rate. The user ids begin with the given
// prefix, because each fault has its own users.
func (c *cluster) traffic(ctx context.Context, prefix string, streams ...stream) *traffic {
	ctx, cancel := context.WithCancel(ctx)
	t := &traffic{stop: cancel}
	users := max(int(c.o.rate*perUser.Seconds()), 1)
	for _, s := range streams {
		for u := range users {
			t.wg.Go(func() {
				user := fmt.Sprintf("%s-%s-%d", prefix, s.name, u)
				if rig.Pause(ctx, perUser*time.Duration(u)/time.Duration(users)) != nil {
					return
				}
				tick := time.NewTicker(perUser)
				defer tick.Stop()
				for seq := 1; ctx.Err() == nil; seq++ {
					t.note(c.send(ctx, s, user, seq))
					select {
					case <-tick.C:
					case <-ctx.Done():
					}
				}
			})
		}
	}
	return t
}

// send sends one push and waits for the answer, even if the load ends before.
func (c *cluster) send(ctx context.Context, s stream, user string, seq int) answer {
	n := api.Notification{
		Channel: "push", Category: s.categories[seq%len(s.categories)], To: api.Receiver{UserID: user, Address: rig.Address("push", user)},
		Content: api.Content{Title: "Fault", Body: fmt.Sprintf("number %d", seq)},
	}
	if s.profiles {
		n.To.Address = ""
	}
	if s.ordered {
		n.Content.Data = fmt.Appendf(nil, `{"usr":%q,"seq":"%d"}`, user, seq)
	}
	a := answer{stream: s.name, sent: time.Now()}
	made, err := c.cl.Send(context.WithoutCancel(ctx), n, "")
	a.at, a.id, a.err = time.Now(), made.NotificationID, err
	if err != nil {
		a.id = ""
	}
	return a
}

func (t *traffic) note(a answer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers = append(t.answers, a)
}

// end stops the load and waits for the answers to the last requests.
func (t *traffic) end() {
	t.stop()
	t.wg.Wait()
}

// counts has the numbers of answers by kind.
type counts struct {
	accepted, refused int64         // answers 201, and answers 503
	noRetry           int64         // answers 503 without Retry-After; also counted in the field refused
	other             int64         // all other answers, and requests without an answer
	example           error         // the last error counted in the field other
	refusal           error         // the last error counted in the field refused
	slowest           time.Duration // longest time from a request to its answer
}

func (n *counts) note(err error) {
	switch {
	case err == nil:
		n.accepted++
	case notify.KindOf(err) == notify.KindUnavailable:
		n.refused++
		n.refusal = err
		if notify.RetryAfterOf(err) <= 0 {
			n.noRetry++
		}
	default:
		n.other++
		n.example = err
	}
}

// count counts the answers to those requests of the stream with this name that were sent in the
// interval [from, to).
func (t *traffic) count(name string, from, to time.Time) (n counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.answers {
		a := &t.answers[i]
		if a.stream != name || a.sent.Before(from) || !a.sent.Before(to) {
			continue
		}
		n.slowest = max(n.slowest, a.at.Sub(a.sent))
		n.note(a.err)
	}
	return n
}

// firstRefusal returns the time from the parameter start until the first answer 503. Requests that
// were sent before start do not count, because they may have been refused for another reason. The
// result refused is false if there was no such answer.
func (t *traffic) firstRefusal(start time.Time) (took time.Duration, refused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.answers {
		a := &t.answers[i]
		if a.sent.Before(start) || notify.KindOf(a.err) != notify.KindUnavailable {
			continue
		}
		if d := a.at.Sub(start); !refused || d < took {
			took, refused = d, true
		}
	}
	return took, refused
}

// accepted returns the times at which requests of the named streams were acknowledged. Without
// names it returns the times of all streams.
func (t *traffic) accepted(streams ...string) (out []time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.answers {
		if a := &t.answers[i]; a.id != "" && (len(streams) == 0 || slices.Contains(streams, a.stream)) {
			out = append(out, a.at)
		}
	}
	return out
}

// ids returns the ids of all acknowledged requests.
func (t *traffic) ids() (out []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.answers {
		if t.answers[i].id != "" {
			out = append(out, t.answers[i].id)
		}
	}
	return out
}

// totals returns the counts of all calls in the ledger of the simulated providers.
func (c *cluster) totals(ctx context.Context) (r rig.Result) {
	rig.Ok(c.v.Totals(ctx, &r))
	return r
}

// waitDelivered waits until every id was sent to a provider, but not longer than rig.Patience. It
// returns the number of ids that were not sent.
func (c *cluster) waitDelivered(ctx context.Context, ids []string) (lost int64) {
	if len(ids) == 0 {
		return 0
	}
	var waited rig.Endurance
	for {
		n, some, err := c.v.Missing(ctx, ids)
		if err != nil || n == 0 {
			rig.Ok(err)
			return n
		}
		if waited.Over() {
			for i, id := range some {
				if i == 5 {
					break
				}
				tl, err := c.cl.Timeline(ctx, id)
				fmt.Printf("  lost: %s %+v %v\n", id, tl.Events, err)
			}
			return n
		}
		rig.Ok(rig.Pause(ctx, 200*time.Millisecond))
	}
}
