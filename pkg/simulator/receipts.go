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

// receiptSender sends the receipts of the providers: the status callbacks of Twilio and the event
// webhook of SendGrid. Receipts wait in a list until they are due. The method run passes due
// receipts to a few workers. So a slow receiver blocks one worker and does not block the providers.
// Receipts that still wait when the simulator stops are lost.
type receiptSender struct {
	sim    *Simulator
	cfg    atomic.Pointer[Receipts]
	client *http.Client

	mu   sync.Mutex    // guards due
	due  []*dueReceipt // sorted by due time, the earliest receipt first
	wake chan struct{} // contains a value after a receipt was added at the front of the list

	drawn                   atomic.Uint64
	sent, refused, overflow atomic.Uint64
}

// ReceiptStats counts receipts, and the calls that deliver them.
type ReceiptStats struct {
	Pending  int    `json:"pending"`  // receipts that wait
	Sent     uint64 `json:"sent"`     // calls that got an answer 2xx
	Refused  uint64 `json:"refused"`  // calls that failed or got another answer
	Overflow uint64 `json:"overflow"` // receipts that were dropped because too many receipts waited
}

const (
	maxPending     = 1 << 20 // most receipts that may wait
	receiptWorkers = 8
	receiptTimeout = 10 * time.Second
	mailRetryFirst = time.Second // SendGrid repeats a webhook call that failed, and Twilio does not
	mailRetryMost  = time.Minute
	mailRetryUntil = 24 * time.Hour
)

// signedPost is a signed callback, ready to be sent.
type signedPost struct {
	url    string
	header http.Header
	body   []byte
}

// dueReceipt is a receipt that is sent at a planned time. Exactly one of sms, event and batch is
// set.
type dueReceipt struct {
	due time.Time

	sms   *smsReceipt
	event *mailEvent

	// batch holds the events of a webhook call that is about to be made or repeated.
	batch []*mailEvent
	tries int       // number of calls with this batch that failed
	since time.Time // when the batch was made
}

func newReceipts(s *Simulator) *receiptSender {
	r := &receiptSender{sim: s, wake: make(chan struct{}, 1)}
	cfg := s.cfg.Receipts
	r.cfg.Store(&cfg)
	r.client = &http.Client{
		Timeout:       receiptTimeout,
		Transport:     &http.Transport{MaxIdleConnsPerHost: receiptWorkers, IdleConnTimeout: 30 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return r
}

// nextRandom returns the next random number in (0, 1).
func (r *receiptSender) nextRandom() float64 {
	return unitInterval(mixHash(r.sim.seed+1, r.drawn.Add(1)))
}

func (r *receiptSender) schedule(v *dueReceipt) {
	r.mu.Lock()
	if len(r.due) >= maxPending {
		r.mu.Unlock()
		r.overflow.Add(1)
		return
	}
	at := sort.Search(len(r.due), func(i int) bool { return r.due[i].due.After(v.due) }) // usually the end of the list
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

// run sends receipts to the workers until ctx ends.
func (r *receiptSender) run(ctx context.Context) error {
	jobs := make(chan *dueReceipt)
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
		v, in := r.takeDue()
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

// takeDue removes a due receipt from the list and returns it. If the receipt is a mail event,
// takeDue adds other due mail events to its batch. If no receipt is due, takeDue returns nil and
// the time until the next receipt is due.
func (r *receiptSender) takeDue() (*dueReceipt, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if len(r.due) == 0 {
		return nil, time.Hour
	}
	if in := r.due[0].due.Sub(now); in > 0 {
		return nil, in
	}
	v := r.takeFirst()
	if v.event == nil {
		return v, 0
	}
	v.batch, v.event, v.since = []*mailEvent{v.event}, nil, now
	most := r.cfg.Load().Batch
	for len(v.batch) < most && len(r.due) > 0 && r.due[0].event != nil && !r.due[0].due.After(now) {
		v.batch = append(v.batch, r.takeFirst().event)
	}
	return v, 0
}

// takeFirst removes the first receipt and returns it. The caller holds the lock.
func (r *receiptSender) takeFirst() *dueReceipt {
	v := r.due[0]
	r.due[0] = nil
	r.due = r.due[1:]
	return v
}

func (r *receiptSender) send(ctx context.Context, v *dueReceipt) {
	if v.sms != nil {
		r.post(ctx, v.sms.signedPost(r.sim.keys.accounts[v.sms.m.account].Token))
		if n := v.sms.next; n != nil {
			r.schedule(n)
		}
		return
	}
	p, err := r.sim.keys.signedEvents(v.batch, r.cfg.Load().SendGridURL, r.sim.now())
	if err != nil {
		r.sim.log.Error("signing a webhook call failed", slog.Any("error", err))
		return
	}
	if p.url == "" || r.post(ctx, p) || time.Since(v.since) > mailRetryUntil {
		return
	}
	v.due = time.Now().Add(min(mailRetryFirst<<min(v.tries, 10), mailRetryMost))
	v.tries++
	r.schedule(v)
}

// post makes one callback. It returns true if the answer was 2xx.
func (r *receiptSender) post(ctx context.Context, p signedPost) bool {
	ok := r.postOnce(ctx, p)
	if ok {
		r.sent.Add(1)
	} else {
		r.refused.Add(1)
	}
	return ok
}

func (r *receiptSender) postOnce(ctx context.Context, p signedPost) bool {
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
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // read the body, so that the connection can be used again
	return resp.StatusCode/100 == 2
}
