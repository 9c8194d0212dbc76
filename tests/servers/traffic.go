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

// stream sends each of its users one push after the other. It sends the next one when the one
// before was answered, because notifyd promises to keep that order.
type stream struct {
	name       string
	categories []string // in turn
	ordered    bool     // the ledger checks the order of each user's pushes
	profiles   bool     // the request has no address: notifyd looks it up
}

// Streams of immediate pushes.
var (
	critical = stream{name: "critical", categories: []string{"otp", "alert"}, ordered: true}
	rest     = stream{name: "rest", categories: []string{"transactional", "marketing"}}
)

// warm is how long load runs before a fault, so that every stage has work under way.
const warm = 3 * time.Second

// prefix returns a prefix of user ids that no other run uses.
func prefix(name string) string { return fmt.Sprintf("%s-%d", name, time.Now().UnixMilli()) }

// answer is the result of one request.
type answer struct {
	stream string
	id     string // empty: refused, or not answered
	sent   time.Time
	at     time.Time
	err    error
}

// traffic is load under way.
type traffic struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	answers []answer
}

// perUser is the time between two pushes to a user.
const perUser = 400 * time.Millisecond

// traffic starts streams, each at the configured rate. prefix keeps the users of this fault
// apart from those of others.
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

// send sends one push. It waits for the answer also if the load ends meanwhile.
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

// end stops the load and waits for the answers of requests under way.
func (t *traffic) end() {
	t.stop()
	t.wg.Wait()
}

// counts has the numbers of answers by kind.
type counts struct {
	accepted, refused int64
	noRetry           int64 // refused without Retry-After
	other             int64 // neither 201 nor 503
	example           error // of other
	refusal           error // of refused
	slowest           time.Duration
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

// count counts the answers of a stream to what was sent in [from, to).
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

// firstRefusal returns how long after a moment the first 503 came. It looks only at requests
// sent after the moment, because earlier ones may have been refused for another reason.
func (t *traffic) firstRefusal(after time.Time) (took time.Duration, there bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.answers {
		a := &t.answers[i]
		if a.sent.Before(after) || notify.KindOf(a.err) != notify.KindUnavailable {
			continue
		}
		if d := a.at.Sub(after); !there || d < took {
			took, there = d, true
		}
	}
	return took, there
}

// accepted returns the times of the acknowledgements of the named streams, or of all streams if
// none is named.
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

// ids returns the acknowledged ids.
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

// totals returns the counts of all calls in the providers' ledger.
func (c *cluster) totals(ctx context.Context) (r rig.Result) {
	rig.Ok(c.v.Totals(ctx, &r))
	return r
}

// delivered waits until every id was sent to a provider, and returns how many were not within
// patience.
func (c *cluster) delivered(ctx context.Context, ids []string) (lost int64) {
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
