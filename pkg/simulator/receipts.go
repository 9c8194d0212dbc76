package simulator

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// receipts sends what providers send back: Twilio's status callbacks and
// SendGrid's event webhook. What is due waits in a list; a dispatcher hands it to
// a few workers, who may block on a slow receiver without blocking anyone else.
// What is still waiting when the simulator stops is lost.
type receipts struct {
	sim    *Simulator
	cfg    atomic.Pointer[Receipts]
	client *http.Client

	mu   sync.Mutex
	due  []*receipt    // the next one first
	wake chan struct{} // an earlier item came; holds one

	drawn                   atomic.Uint64
	sent, refused, overflow atomic.Uint64
}

// ReceiptStats counts callbacks.
type ReceiptStats struct {
	Pending  int    `json:"pending"`
	Sent     uint64 `json:"sent"`     // calls answered 2xx
	Refused  uint64 `json:"refused"`  // calls that failed or were answered otherwise
	Overflow uint64 `json:"overflow"` // receipts dropped because too many waited
}

const (
	maxPending     = 1 << 20 // receipts that may wait
	receiptWorkers = 8
	receiptTimeout = 10 * time.Second
	mailRetryFirst = time.Second // SendGrid's webhook is tried again, Twilio's is not
	mailRetryMost  = time.Minute
	mailRetryUntil = 24 * time.Hour
)

// post is a callback ready to leave.
type post struct {
	url    string
	header http.Header
	body   []byte
}

// receipt is something to send at a moment. Exactly one of its halves is set.
type receipt struct {
	due time.Time

	sms   *smsReceipt
	event *mailEvent

	batch []*mailEvent // a webhook call on its way again
	tries int
	since time.Time
}

func newReceipts(s *Simulator) *receipts {
	r := &receipts{sim: s, wake: make(chan struct{}, 1)}
	cfg := s.cfg.Receipts
	r.cfg.Store(&cfg)
	r.client = &http.Client{
		Timeout:       receiptTimeout,
		Transport:     &http.Transport{MaxIdleConnsPerHost: receiptWorkers, IdleConnTimeout: 30 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return r
}

// draw returns the next random number in (0, 1).
func (r *receipts) draw() float64 { return unit(mix(r.sim.seed+1, r.drawn.Add(1))) }

func (r *receipts) push(v *receipt) {
	r.mu.Lock()
	if len(r.due) >= maxPending {
		r.mu.Unlock()
		r.overflow.Add(1)
		return
	}
	at := sort.Search(len(r.due), func(i int) bool { return r.due[i].due.After(v.due) }) // mostly the end
	r.due = slices.Insert(r.due, at, v)
	first := at == 0
	r.mu.Unlock()
	if first {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// run dispatches until ctx ends.
func (r *receipts) run(ctx context.Context) error {
	jobs := make(chan *receipt)
	var wg sync.WaitGroup
	for range receiptWorkers {
		wg.Go(func() {
			for v := range jobs {
				r.send(ctx, v)
			}
		})
	}
	defer func() {
		close(jobs)
		wg.Wait()
		r.client.CloseIdleConnections()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		v, in := r.pop()
		if v != nil {
			select {
			case jobs <- v:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		timer.Reset(in)
		select {
		case <-timer.C:
		case <-r.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// pop takes what is due, mail events by the batch; when nothing is, it says in
// what time to look again.
func (r *receipts) pop() (*receipt, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if len(r.due) == 0 {
		return nil, time.Hour
	}
	if in := r.due[0].due.Sub(now); in > 0 {
		return nil, in
	}
	v := r.take()
	if v.event == nil {
		return v, 0
	}
	v.batch, v.event, v.since = []*mailEvent{v.event}, nil, now
	most := r.cfg.Load().Batch
	for len(v.batch) < most && len(r.due) > 0 && r.due[0].event != nil && !r.due[0].due.After(now) {
		v.batch = append(v.batch, r.take().event)
	}
	return v, 0
}

// take removes the first. The lock is held.
func (r *receipts) take() *receipt {
	v := r.due[0]
	r.due[0] = nil
	r.due = r.due[1:]
	return v
}

func (r *receipts) send(ctx context.Context, v *receipt) {
	if v.sms != nil {
		r.call(ctx, v.sms.post(r.sim.keys.accounts[v.sms.m.account].Token))
		if n := v.sms.next; n != nil {
			r.push(n)
		}
		return
	}
	p, err := r.sim.keys.events(v.batch, r.cfg.Load().SendGridURL, r.sim.now())
	if err != nil {
		r.sim.log.Error("signing a webhook call failed", slog.Any("error", err))
		return
	}
	if p.url == "" || r.call(ctx, p) || time.Since(v.since) > mailRetryUntil {
		return
	}
	v.due = time.Now().Add(min(mailRetryFirst<<min(v.tries, 10), mailRetryMost))
	v.tries++
	r.push(v)
}

// call makes one callback and reports whether it was answered 2xx.
func (r *receipts) call(ctx context.Context, p post) bool {
	ok := r.do(ctx, p)
	if ok {
		r.sent.Add(1)
	} else {
		r.refused.Add(1)
	}
	return ok
}

func (r *receipts) do(ctx context.Context, p post) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(p.body))
	if err != nil {
		return false
	}
	req.Header = p.header
	resp, err := r.client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // to use the connection again
	return resp.StatusCode/100 == 2
}
