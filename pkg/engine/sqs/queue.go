package sqs

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type queue struct {
	s           *Store
	maxReceives int
	lanes       [3]lane

	behind sync.WaitGroup // requests whose caller left

	mu     sync.Mutex
	held   map[string]time.Time // receipt -> until when it is the receiver's
	sweep  int                  // len(held) at which the next look for what is over is worth it
	toward int                  // messages on time that were received since one of the backlog
}

const (
	// perRequest is how many messages SQS takes and gives in one request.
	perRequest = 10
	// maxRequest is the most bytes SQS takes in one request.
	maxRequest = 256 << 10
)

// A body is base64 behind a character that says so: SQS takes no empty ones, and
// no bytes that are not XML's.
const plain = "1"

func encode(body []byte) string { return plain + base64.RawStdEncoding.EncodeToString(body) }

func decode(s string) ([]byte, error) {
	text, ok := strings.CutPrefix(s, plain)
	if !ok {
		return nil, notify.ErrCorrupt
	}
	return base64.RawStdEncoding.DecodeString(text)
}

// seconds rounds up.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

// Enqueue sends what is due first first: batches leave in due order, some at a time.
func (q *queue) Enqueue(ctx context.Context, ms []engine.Message) error {
	if err := engine.CheckMessages(ms); err != nil {
		return err
	}
	var by [2][]*engine.Message
	for i := range ms {
		l := onTime
		if ms[i].Backlog {
			l = backlog
		}
		by[l] = append(by[l], &ms[i])
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(q.s.cfg.Parallel)
	for l, list := range by {
		slices.SortStableFunc(list, func(a, b *engine.Message) int { return int(seconds(a.Delay) - seconds(b.Delay)) })
		for len(list) > 0 {
			n, bytes := 0, 0
			var es []types.SendMessageBatchRequestEntry
			for n < min(len(list), perRequest) {
				body := encode(list[n].Body)
				if bytes += len(body); n > 0 && bytes > maxRequest {
					break
				}
				es = append(es, types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(n)), MessageBody: &body, DelaySeconds: seconds(list[n].Delay)})
				n++
			}
			list = list[n:]
			g.Go(func() error { return q.send(ctx, l, es) })
		}
	}
	return g.Wait()
}

// send stores one batch; entries that SQS refused for reasons of its own are sent
// again.
func (q *queue) send(ctx context.Context, l int, es []types.SendMessageBatchRequestEntry) error {
	url, err := q.at(ctx, l)
	if err != nil {
		return err
	}
	return retried(ctx, q.s, es, func(e types.SendMessageBatchRequestEntry) *string { return e.Id }, func(ctx context.Context, es []types.SendMessageBatchRequestEntry) ([]types.BatchResultErrorEntry, error) {
		out, err := q.s.api.SendMessageBatch(ctx, &api.SendMessageBatchInput{QueueUrl: url, Entries: es})
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	}, nil)
}

// retried does a batch, and again what failed of it, more and more slowly, until
// the time of a call is over. forgive says of a code that its entry is done with.
func retried[E any](ctx context.Context, s *Store, es []E, id func(E) *string, do func(context.Context, []E) ([]types.BatchResultErrorEntry, error), forgive func(code string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	for pause := (notify.Pause{}); ; {
		failed, err := do(ctx, es)
		if err != nil {
			return translate(err)
		}
		var again []E
		var last error
		for _, f := range failed {
			code := aws.ToString(f.Code)
			if forgive != nil && forgive(code) {
				continue
			}
			last = fmt.Errorf("%s: %s", code, aws.ToString(f.Message))
			if f.SenderFault && !strings.Contains(code, "Throttl") {
				return translate(last)
			}
			if i := slices.IndexFunc(es, func(e E) bool { return aws.ToString(id(e)) == aws.ToString(f.Id) }); i >= 0 {
				again = append(again, es[i])
			}
		}
		if len(again) == 0 {
			return nil
		}
		es = again
		if !pause.Wait(ctx) {
			return translate(last)
		}
	}
}

// Receive asks both lanes for what they have, and waits where neither has any.
func (q *queue) Receive(ctx context.Context, max int, visibility time.Duration) (out []engine.Delivery, err error) {
	if err := engine.CheckVisibility(visibility); err != nil {
		return nil, err
	}
	if max <= 0 {
		return nil, nil
	}
	for ctx.Err() == nil {
		if out, err = q.ready(ctx, max, visibility); err != nil || len(out) > 0 {
			break
		}
		out, err = q.poll(ctx, onTime, min(max, perRequest), visibility, q.wait(ctx))
		if err != nil || len(out) > 0 {
			break
		}
	}
	if len(out) == 0 && ctx.Err() != nil {
		err = nil
	}
	if len(out) > 0 {
		err = nil // what was received counts; the next call meets the error again
	}
	return out, err
}

// wait is for how long SQS is asked to wait: not beyond a deadline, for what comes
// behind it is received in vain. Close to one it is a pause of our own.
func (q *queue) wait(ctx context.Context) time.Duration {
	at, ok := ctx.Deadline()
	left := time.Until(at)
	switch {
	case !ok || left >= q.s.cfg.Wait:
		return q.s.cfg.Wait
	case left >= time.Second:
		return left.Truncate(time.Second)
	}
	notify.Sleep(ctx, min(left, 200*time.Millisecond))
	return 0
}

// ready takes what can be had now, of the lanes as BacklogShare says.
func (q *queue) ready(ctx context.Context, max int, visibility time.Duration) ([]engine.Delivery, error) {
	late := q.share(max)
	var out []engine.Delivery
	get := func(l, n int) error {
		ds, err := q.many(ctx, l, n, visibility)
		out = append(out, ds...)
		q.received(l, len(ds))
		return err
	}
	if err := get(backlog, late); err != nil {
		return out, err
	}
	if err := get(onTime, max-len(out)); err != nil {
		return out, err
	}
	if len(out) < max { // none waits that is on time: all may be late
		return out, get(backlog, max-len(out))
	}
	return out, nil
}

// share is how many of the next n may come from the backlog while the other lane
// has messages.
func (q *queue) share(n int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return (q.toward + n) / engine.BacklogShare
}

// received counts towards the next share. Nothing is saved up: a lane that had
// none is owed none.
func (q *queue) received(l, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l == onTime {
		q.toward = min(q.toward+n, engine.BacklogShare-1)
	} else if n > 0 {
		q.toward = 0
	}
}

// many takes up to n of a lane without waiting. One request tells whether more are
// worth it.
func (q *queue) many(ctx context.Context, l, n int, visibility time.Duration) ([]engine.Delivery, error) {
	if n <= 0 || ctx.Err() != nil {
		return nil, nil
	}
	out, err := q.poll(ctx, l, min(n, perRequest), visibility, 0)
	if err != nil || len(out) < perRequest {
		return out, err
	}
	left := n - len(out)
	found := make([][]engine.Delivery, (left+perRequest-1)/perRequest)
	var g errgroup.Group
	g.SetLimit(q.s.cfg.Parallel)
	for i := range found {
		size := min(left-i*perRequest, perRequest)
		g.Go(func() (err error) {
			found[i], err = q.poll(ctx, l, size, visibility, 0)
			return err
		})
	}
	err = g.Wait()
	return append(out, slices.Concat(found...)...), err
}

// poll is one request for up to 10 messages. When ctx ends before the answer, the
// request goes on, for SQS may have given messages already: they are put back.
func (q *queue) poll(ctx context.Context, l, n int, visibility, wait time.Duration) ([]engine.Delivery, error) {
	url, err := q.at(ctx, l)
	if err != nil || ctx.Err() != nil {
		return nil, err
	}
	type answer struct {
		ds  []engine.Delivery
		err error
	}
	got := make(chan answer)
	left := make(chan struct{})
	on := context.WithoutCancel(ctx)
	limited, cancel := context.WithTimeout(on, q.s.cfg.Timeout+wait)
	defer close(left)
	q.behind.Go(func() {
		defer cancel()
		out, err := q.s.api.ReceiveMessage(limited, &api.ReceiveMessageInput{
			QueueUrl: url, MaxNumberOfMessages: int32(n), WaitTimeSeconds: seconds(wait),
			// Longer than asked for: ours has ended before SQS gives it to another.
			VisibilityTimeout:           seconds(visibility + time.Second/2),
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameApproximateReceiveCount, types.MessageSystemAttributeNameSentTimestamp},
		})
		var a answer
		switch {
		case codeOf(err) == "OverLimit": // as many are in flight as SQS allows: none for now
			select {
			case <-time.After(time.Second):
			case <-left:
			}
		case err != nil:
			a.err = translate(err)
		default:
			for i := range out.Messages {
				if d, err := delivery(l, &out.Messages[i]); err == nil {
					a.ds = append(a.ds, d)
				} // else it is not ours: it dies by not being acknowledged
			}
			q.hold(a.ds, visibility)
		}
		select {
		case got <- a:
		case <-left:
			for i := range a.ds {
				_ = q.Release(on, a.ds[i].Receipt, 0) // else it comes back by itself, later
			}
		}
	})
	select {
	case a := <-got:
		return a.ds, a.err
	case <-ctx.Done():
		time.AfterFunc(wait+time.Second, cancel)
		return nil, nil
	}
}

func delivery(l int, m *types.Message) (d engine.Delivery, err error) {
	d.Receipt = strconv.Itoa(l) + aws.ToString(m.ReceiptHandle)
	if d.Body, err = decode(aws.ToString(m.Body)); err != nil {
		return d, err
	}
	if d.Receives, err = strconv.Atoi(m.Attributes["ApproximateReceiveCount"]); err != nil {
		return d, err
	}
	sent, err := strconv.ParseInt(m.Attributes["SentTimestamp"], 10, 64)
	d.Enqueued, d.Backlog = time.UnixMilli(sent), l == backlog
	return d, err
}
