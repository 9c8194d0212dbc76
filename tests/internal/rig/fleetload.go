package rig

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Load is a running load on an installation. Each user gets messages on one channel, one after the
// other. Some users also get scheduled pushes and triggers.
type Load struct {
	f    *Fleet
	cl   *api.Client
	o    LoadConfig
	urls string
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex
	began    time.Time
	now      Dues    // accepted messages without a due time; the value is the time of the request
	later    Dues    // accepted scheduled pushes
	triggers Dues    // accepted triggers
	errs     []error // errors of requests, after all retries

	cancelled         []string // scheduled pushes whose cancel was final
	cancelledTriggers Dues
}

// LoadConfig configures a Load.
type LoadConfig struct {
	Prefix string        // prefix of the user ids
	Users  int           // number of users of each channel
	Every  time.Duration // time between two messages to a user
	// Ahead is the time from the registration of a schedule or trigger to its due time. Up to 0.9
	// of Every is added to it, so that the due times differ.
	Ahead time.Duration
	// If Far is not 0, every fourth schedule and trigger uses Far instead of Ahead. Half of these
	// are cancelled when 2*Ahead is left until the due time, if the load has not ended by then.
	Far time.Duration
	// Later is the number of schedules that a user gets in each interval Every. The user gets the
	// same number of triggers. 0: one of each.
	Later int
	// Planners is the number of users who get schedules and triggers; 0: all.
	Planners int
	// Warm is the first part of the load. Messages that are requested in this time do not count for
	// Sums.Slowest.
	Warm time.Duration
}

// Load starts the load. The caller must call End.
func (f *Fleet) Load(ctx context.Context, cl *api.Client, o LoadConfig) (*Load, error) {
	l := &Load{f: f, cl: cl, o: o, began: time.Now(), now: Dues{}, later: Dues{}, triggers: Dues{}, cancelledTriggers: Dues{}}
	var err error
	if l.urls, err = f.V.CallbackURL(ctx); err != nil {
		return nil, err
	}
	ctx, l.stop = context.WithCancel(ctx)
	for u := range o.Users {
		for _, channel := range []string{"push", "sms", "email"} {
			l.repeatRequests(ctx, u, func(ctx context.Context, seq int) { l.send(ctx, channel, u, seq) })
		}
		for k := range max(o.Later, 1) {
			if o.Planners > 0 && u >= o.Planners {
				break
			}
			l.repeatRequests(ctx, u, func(asking context.Context, seq int) { l.scheduleLater(ctx, asking, k*o.Users+u, seq) })
		}
	}
	return l, nil
}

// repeatRequests starts a goroutine that calls the function request once in each interval o.Every,
// until the load ends. The second argument of the function is the number of the call, from 1. A
// request that has begun gets its answer, even if the load ends.
func (l *Load) repeatRequests(ctx context.Context, user int, request func(context.Context, int)) {
	l.wg.Go(func() {
		if Pause(ctx, l.o.Every*time.Duration(user)/time.Duration(l.o.Users)) != nil {
			return
		}
		tick := time.NewTicker(l.o.Every)
		defer tick.Stop()
		for seq := 1; ctx.Err() == nil; seq++ {
			request(context.WithoutCancel(ctx), seq)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
}

// End stops the load and waits for the answers to the last requests.
func (l *Load) End() {
	l.stop()
	l.wg.Wait()
}

// Accepted returns how many messages without a due time have been accepted so far.
func (l *Load) Accepted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.now)
}

// Address returns the address of a user for a channel. The same user always has the same address.
func Address(channel, user string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(user))
	switch channel {
	case "sms":
		return fmt.Sprintf("+1%010d", h.Sum64()%10_000_000_000)
	case "email":
		return user + "@example.com"
	}
	return fmt.Sprintf("apns:%064x", h.Sum64())
}

// send sends one message. The ledger checks the order of each user's pushes.
func (l *Load) send(ctx context.Context, channel string, u, seq int) {
	user := fmt.Sprintf("%s-%s-%d", l.o.Prefix, channel, u)
	n := api.Notification{
		Channel: channel, Category: []string{"otp", "alert"}[seq%2], To: api.Receiver{UserID: user, Address: Address(channel, user)},
		Content: api.Content{Body: fmt.Sprintf("number %d", seq)},
	}
	switch channel {
	case "push":
		n.Content.Data = fmt.Appendf(nil, `{"usr":%q,"seq":"%d"}`, user, seq)
	case "email":
		n.Content.Title = "Load"
	}
	asked := time.Now()
	made, err := l.cl.Send(ctx, n, fmt.Sprintf("%s-%d", user, seq))
	l.note(err, func() { l.now[made.NotificationID] = asked })
}

// scheduleLater schedules a push and registers a trigger. loadCtx is cancelled when the load ends.
// ctx is not, so a request that has begun gets its answer.
func (l *Load) scheduleLater(loadCtx, ctx context.Context, u, seq int) {
	user := fmt.Sprintf("%s-later-%d-%d", l.o.Prefix, u, seq)
	ahead, far := l.o.Ahead, l.o.Far > 0 && (u+seq)%4 == 0
	if far {
		ahead = l.o.Far
	}
	at := time.Now().Add(ahead + time.Duration(seq%10)*l.o.Every/10).UTC().Truncate(time.Millisecond)
	made, err := l.cl.Send(ctx, api.Notification{
		Channel: "push", Category: "alert", To: api.Receiver{UserID: user, Address: Address("push", user)},
		Content: api.Content{Body: "later"}, ScheduledAt: &at,
	}, user)
	l.note(err, func() { l.later[made.NotificationID] = at })
	t, err := l.cl.Trigger(ctx, Due(l.urls+"/load", at), user)
	l.note(err, func() { l.triggers[t.TriggerID] = at })
	if err == nil && made.NotificationID != "" && far && (u+seq)%8 == 0 {
		l.wg.Go(func() {
			if Pause(loadCtx, time.Until(at.Add(-2*l.o.Ahead))) == nil {
				l.cancel(ctx, made.NotificationID, t.TriggerID)
			}
		})
	}
}

// cancel cancels a scheduled push and a trigger. If the request had to be repeated, the cancel may
// be too late. Then the server answers with a conflict, and the push or trigger must still be sent.
func (l *Load) cancel(ctx context.Context, push, trigger string) {
	c, err := l.cl.Cancel(ctx, push)
	if notify.KindOf(err) != notify.KindConflict {
		l.note(err, func() {
			if c.Final {
				delete(l.later, push)
				l.cancelled = append(l.cancelled, push)
			}
		})
	}
	_, err = l.cl.CancelTrigger(ctx, trigger)
	if notify.KindOf(err) != notify.KindConflict {
		l.note(err, func() {
			l.cancelledTriggers[trigger] = l.triggers[trigger]
			delete(l.triggers, trigger)
		})
	}
}

func (l *Load) note(err error, accepted func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.errs = append(l.errs, err)
		return
	}
	accepted()
}

// Sums has the results of a load, as Check returns them.
type Sums struct {
	Accepted, Scheduled, Triggers int
	Errors                        []error // errors of requests after all retries
	Lost                          int64   // accepted but never sent or called
	Duplicates                    int64   // calls that a provider accepted again for the same id and address
	Twice                         int64   // calls of a trigger after the first accepted call
	// Early counts schedules and triggers that were sent or called before their due time. Reordered
	// counts first attempts out of their user's order.
	Early, Reordered int64
	// Cancelled counts schedules and triggers whose cancel was final. CancelledSent counts
	// the schedules and triggers of Cancelled that were sent or called nevertheless.
	Cancelled, CancelledSent int64
	Latest                   time.Duration // greatest lateness of a schedule or trigger
	// Slowest is the longest time from the request for a message to the call of the provider for
	// this message. Messages that were requested within Warm do not count.
	Slowest time.Duration
}

// Whole returns true if every request was accepted in the end, and no message was lost, repeated,
// early, out of order, or sent after its cancellation.
func (s Sums) Whole() bool {
	return s.Accepted > 0 && s.Scheduled > 0 && s.Triggers > 0 && len(s.Errors) == 0 && s.Lost+s.Duplicates+s.Twice+s.Early+s.Reordered+s.CancelledSent == 0
}

func (s Sums) String() string {
	return fmt.Sprintf("accepted=%d scheduled=%d triggers=%d errors=%d lost=%d duplicates=%d called_twice=%d early=%d reordered=%d",
		s.Accepted, s.Scheduled, s.Triggers, len(s.Errors), s.Lost, s.Duplicates, s.Twice, s.Early, s.Reordered)
}

// Check waits until every accepted message was sent and every trigger was called, but not longer
// than Patience. Then it returns the sums.
func (l *Load) Check(ctx context.Context) (s Sums, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err = Try(func() {
		s = Sums{Accepted: len(l.now), Scheduled: len(l.later), Triggers: len(l.triggers), Errors: l.errs}
		all := append(l.later.IDs(), l.now.IDs()...)
		var waited Endurance
		for {
			missing, some := Must2(l.f.V.Missing(ctx, all))
			f := Must(l.f.V.Fired(ctx, l.triggers))
			s.Lost, s.Twice, s.Early, s.Latest = missing+int64(len(f.Lost)), f.Twice, int64(len(f.Early)), f.Latest
			if s.Lost == 0 {
				break
			}
			if waited.Over() {
				l.explain(ctx, some, f.Lost)
				break
			}
			Ok(Pause(ctx, 200*time.Millisecond))
		}
		early, latest := Must2(l.f.V.SentEarly(ctx, l.later))
		s.Early, s.Latest = s.Early+int64(len(early)), max(s.Latest, latest)
		warm := maps.Clone(l.now)
		maps.DeleteFunc(warm, func(_ string, asked time.Time) bool { return asked.Before(l.began.Add(l.o.Warm)) })
		_, s.Slowest = Must2(l.f.V.SentEarly(ctx, warm))
		unsent, _ := Must2(l.f.V.Missing(ctx, l.cancelled))
		s.Cancelled = int64(len(l.cancelled) + len(l.cancelledTriggers))
		s.CancelledSent = int64(len(l.cancelled)) - unsent + int64(len(Must(l.f.V.Fired(ctx, l.cancelledTriggers)).First))
		var totals Result
		Ok(l.f.V.Totals(ctx, &totals))
		s.Duplicates, s.Reordered = totals.Duplicates, totals.Reordered
	})
	return s, err
}

// explain prints the states of up to five messages and five triggers that were never sent or called.
func (l *Load) explain(ctx context.Context, ids, triggers []string) {
	for _, id := range ids[:min(len(ids), 5)] {
		tl, err := l.cl.Timeline(ctx, id)
		fmt.Printf("  lost: %s %+v %v\n", id, tl.Events, err)
	}
	for _, id := range triggers[:min(len(triggers), 5)] {
		st, err := l.cl.TriggerStatus(ctx, id)
		fmt.Printf("  lost: %s %+v %v\n", id, st, err)
	}
}

// Delivered waits until a notification has a terminal state. It returns an error if the state
// is not DELIVERED.
func Delivered(ctx context.Context, cl *api.Client, id string) error {
	return Until(ctx, id+" is DELIVERED", func() (bool, error) {
		st, err := cl.Notification(ctx, id)
		if err != nil && notify.KindOf(err) != notify.KindUnavailable {
			return false, err
		}
		if s, _ := notify.ParseState(st.Status); s.Terminal() && st.Status != "DELIVERED" {
			return false, fmt.Errorf("the notification %s must be DELIVERED, but is %s", id, st.Status)
		}
		return st.Status == "DELIVERED", nil
	})
}
