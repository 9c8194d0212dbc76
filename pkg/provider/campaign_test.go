package provider

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
	"github.com/notifyd/notifyd/pkg/worker"
)

// atRate is a client's real accounts before a provider that takes 100 ms a call.
// It notes when each user was called.
type atRate struct {
	t        *testing.T
	accounts *accounts
	channel  notify.Channel

	mu     sync.Mutex
	called map[string][]time.Time
}

func (p *atRate) Admit(ctx context.Context, cat notify.Category, n int) (notify.Permit, error) {
	return p.accounts.admitFor(ctx, p.channel, cat, min(n, sendGridBatch))
}

func (p *atRate) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	by := p.accounts.permitOf(call)
	if by == nil || by.useTokens(len(call.Items)) != len(call.Items) {
		p.t.Errorf("%d items are called without a permit for them", len(call.Items))
		report(0, len(call.Items), notify.Result{Class: notify.ClassPermanent})
		return
	}
	p.mu.Lock()
	for i := range call.Items {
		u := string(call.Items[i].User)
		p.called[u] = append(p.called[u], time.Now())
	}
	p.mu.Unlock()
	time.Sleep(100 * time.Millisecond) // of the bubble
	p.accounts.callEnded(by.account, notify.ClassAccepted)
	if ctx.Err() != nil {
		p.t.Error("a call was cut off")
	}
	report(0, len(call.Items), notify.Result{Class: notify.ClassAccepted, Confirmed: true, Provider: by.account.name})
}

// someOut are preferences that allow every receiver. From a time on they refuse the
// receivers that have opted out.
type someOut struct {
	mu  sync.Mutex
	out func(user string) bool
}

func (p *someOut) DecideMany(answers []users.Answer, list [][]byte, ch notify.Channel, cat notify.Category, now time.Time) bool {
	for i := range list {
		answers[i] = users.NewAnswer(p.Decide(list[i], ch, cat, now))
	}
	return true
}

func (p *someOut) Decide(user []byte, _ notify.Channel, cat notify.Category, _ time.Time) users.Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out != nil && !cat.Critical() && p.out(string(user)) {
		return users.Verdict{Action: users.OptedOut}
	}
	return users.Verdict{}
}

func (*someOut) Addresses(to []notify.Target, _ []byte, _ notify.Channel) []notify.Target { return to }
func (*someOut) Suppressed(notify.Channel, []byte) bool                                   { return false }
func (*someOut) Suppresses() bool                                                         { return false }
func (*someOut) Suppress(context.Context, string, notify.Channel, string, string) error   { return nil }
func (*someOut) Unsubscribe(context.Context, string, notify.Channel) error                { return nil }
func (*someOut) Fresh(time.Time) bool                                                     { return true }
func (*someOut) Hold(notify.Channel, int, int32) *users.Holding                           { return nil }
func (*someOut) Fetch(context.Context, notify.Channel, [][]byte) error                    { return nil }
func (*someOut) Loaded() bool                                                             { return true }

type neverCancelled struct{}

func (neverCancelled) Cancelled(*notify.Envelope, uint32) bool { return false }
func (neverCancelled) MayBeCancelled(*notify.Envelope) bool    { return false }
func (neverCancelled) Fresh(time.Time) bool                    { return true }

// nothingOn fails the test where something is handed on: a retry, a failure, a wait.
type nothingOn struct{ t *testing.T }

func (n nothingOn) Append(_ context.Context, recs []log.Record) error {
	n.t.Errorf("to %s: %d records", recs[0].Topic, len(recs))
	return nil
}

func (n nothingOn) Park(_ context.Context, ts []engine.Timer) error {
	n.t.Errorf("%d parked", len(ts))
	return nil
}

// Campaigns that are far larger than what the provider's rate allows in the time of a call: no
// receiver fails, each is called once, an opt-out applies to each call that starts a second
// later, and codes do not wait for campaigns. After a stop in the middle it is known for each
// receiver whether it was called.
func TestCampaignAtTheRate(t *testing.T) {
	sendgrid := func(rate float64) (*accounts, notify.Channel) {
		s, err := NewSendGrid(SendGridConfig{APIKey: "k", From: "a@example.com", Rate: rate})
		if err != nil {
			t.Fatal(err)
		}
		return s.accounts, notify.Email
	}
	twilio := func(rate float64) (*accounts, notify.Channel) {
		s, err := NewTwilio(TwilioConfig{Accounts: []TwilioAccount{{SID: "AC1", Token: "t", From: "+1"}}, Rate: rate})
		if err != nil {
			t.Fatal(err)
		}
		return s.accounts, notify.SMS
	}
	for _, c := range []struct {
		name      string
		client    func(rate float64) (*accounts, notify.Channel)
		rate      float64
		receivers int
	}{
		{"mail", sendgrid, 1, 100_000},
		{"mail", sendgrid, 10, 100_000},
		{"mail", sendgrid, 100, 100_000},
		{"sms", twilio, 1, 2_000},
		{"sms", twilio, 10, 10_000},
	} {
		if testing.Short() {
			c.receivers = min(c.receivers, 20_000)
		}
		t.Run(fmt.Sprint(c.name, " at ", c.rate), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { campaign(t, c.client, c.rate, c.receivers) })
		})
	}
}

func campaign(t *testing.T, client func(float64) (*accounts, notify.Channel), rate float64, receivers int) {
	const chunk = 1000
	prov := &atRate{t: t, called: map[string][]time.Time{}}
	prov.accounts, prov.channel = client(rate)
	store, users := memory.New().Status(), &someOut{}
	var mu sync.Mutex
	var recs [][]byte
	done := make([]bool, receivers/chunk)
	var envs []notify.Envelope
	for c := range receivers / chunk {
		var w notify.ReceiverWriter
		for i := range chunk {
			u := fmt.Sprint("u", c*chunk+i)
			w.Append(notify.Receiver{Index: uint32(c*chunk + i), User: []byte(u), Address: []byte(u + "@x")})
		}
		e := notify.Envelope{
			Chunk: notify.Chunk{Base: testBase, Block: uint32(c)}, FanOut: true, Channel: prov.channel, Category: notify.Marketing,
			Accepted: time.Now().UnixMilli(), Caller: "shop", Content: notify.Content{Body: "hello"}, Count: chunk, Receivers: w.Bytes(),
		}
		envs, recs = append(envs, e), append(recs, notify.AppendEnvelope(nil, &e))
	}

	// life runs both lanes as one process until f returns, and drains them.
	life := func(f func(code func(i int) time.Duration)) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var wg sync.WaitGroup
		commit := worker.NewCommitter(worker.CommitterConfig{Put: store.Put})
		wg.Go(func() { _ = commit.Run(ctx) })
		health, err := worker.NewHealth(limit.BreakerConfig{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		assign := func(bulk bool) log.PartitionHandler {
			lane := notify.Lane{Channel: prov.channel, Bulk: bulk}
			return worker.New(worker.Config{
				Lane: lane, Routes: worker.Routes{Names: []string{"prov"}, Of: func([]byte) int { return 0 }},
				Log: nothingOn{t}, Parker: nothingOn{t}, Status: store, Committer: commit, Prefs: users, Cancels: neverCancelled{},
				Provider: prov, Health: health,
			}).Assigned(ctx, log.TopicPartition{Topic: lane.Topic()})
		}
		fast, bulk := assign(false), assign(true)
		var msgs []*log.Msg
		for i := range recs {
			if !done[i] {
				msgs = append(msgs, log.NewMsg(log.Record{Topic: notify.Lane{Channel: prov.channel, Bulk: true}.Topic(), Offset: int64(i), Value: recs[i]}, func() {
					mu.Lock()
					done[i] = true
					mu.Unlock()
				}))
			}
		}
		if err := bulk.Handle(ctx, msgs); err != nil {
			t.Fatal(err)
		}
		f(func(i int) time.Duration {
			u := fmt.Sprint("code", i)
			var w notify.ReceiverWriter
			w.Append(notify.Receiver{User: []byte(u), Address: []byte("c@x")})
			e := notify.Envelope{
				Chunk: notify.Chunk{Base: testBase, Partition: 1, Block: uint32(i)}, Channel: prov.channel, Category: notify.OTP,
				Accepted: time.Now().UnixMilli(), Caller: "shop", Content: notify.Content{Body: "1"}, Count: 1, Receivers: w.Bytes(),
			}
			began := time.Now()
			rec := log.Record{Topic: notify.Lane{Channel: prov.channel}.Topic(), Offset: int64(i), Value: notify.AppendEnvelope(nil, &e)}
			if err := fast.Handle(ctx, []*log.Msg{log.NewMsg(rec, func() {})}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			prov.mu.Lock()
			defer prov.mu.Unlock()
			if at := prov.called[u]; len(at) == 1 {
				return at[0].Sub(began)
			}
			return time.Hour
		})
		for _, p := range []log.PartitionHandler{fast, bulk} {
			dctx, end := context.WithTimeout(ctx, 20*time.Second)
			p.(log.Drainer).Drain(dctx)
			end()
		}
		stop()
		wg.Wait()
	}

	interval := max(time.Second, time.Duration(float64(time.Second)/rate))
	all := time.Duration(float64(receivers) / (rate / 2) * float64(time.Second)) // bulk's share is a half
	var outAt time.Time
	life(func(code func(int) time.Duration) {
		for i := range 5 {
			time.Sleep(all / 20)
			if d := code(i); d > interval {
				t.Errorf("a code was called after %v", d)
			}
		}
		users.mu.Lock()
		users.out = func(u string) bool { return u[len(u)-1] == '7' }
		users.mu.Unlock()
		outAt = time.Now()
		time.Sleep(all / 10)
	})
	for i := range envs { // after the stop
		rows, err := store.Chunk(t.Context(), envs[i].Chunk)
		if err != nil {
			t.Fatal(err)
		}
		for k := range rows {
			if r := &rows[k]; !r.Done && r.StartedUpTo != r.DoneUpTo {
				t.Errorf("the stop left %d to %d claimed", r.DoneUpTo, r.StartedUpTo)
			}
		}
	}
	life(func(func(int) time.Duration) { time.Sleep(all) })

	var ends [notify.States]int
	for i := range envs {
		rows, err := store.Chunk(t.Context(), envs[i].Chunk)
		if err != nil {
			t.Fatal(err)
		}
		for x := range uint32(chunk) {
			index := uint32(i*chunk) + x
			u := fmt.Sprint("u", index)
			at := prov.called[u]
			s := notify.Fold(rows, index, x).State
			ends[s]++
			switch {
			case s == notify.Delivered && len(at) == 1 && !(u[len(u)-1] == '7' && at[0].After(outAt.Add(time.Second))):
			case s == notify.Suppressed && len(at) == 0 && u[len(u)-1] == '7':
			default:
				t.Fatalf("%s: %v, called at %v, opt-out at %v", u, s, at, outAt)
			}
		}
	}
	if ends[notify.Suppressed] == 0 {
		t.Error("the opt-out came too late to tell")
	}
	t.Logf("%d delivered, %d suppressed", ends[notify.Delivered], ends[notify.Suppressed])
}
