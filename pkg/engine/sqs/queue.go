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

// queue implements engine.Queue.
type queue struct {
	s           *Store
	maxReceives int
	lanes       [3]lane // onTime, backlog, dead

	polls sync.WaitGroup // goroutines of the method poll; some still run after the method has returned

	mu        sync.Mutex           // guards the fields below
	held      map[string]time.Time // receipt -> end of its visibility, by the clock of this process
	sweepSize int                  // len(held) at which holdReceipts removes invalid receipts
	// sinceBacklog is how many messages of the lane onTime were received since the last
	// message of the backlog.
	sinceBacklog int
}

const (
	// perRequest is the greatest number of messages in one request.
	perRequest = 10
	// maxRequest is the greatest size of one request, in bytes.
	maxRequest = 256 << 10
)

// base64Mark is the first character of every body, and the rest of the body is base64. Both are
// needed because SQS accepts neither an empty body nor characters that XML does not allow.
const base64Mark = "1"

func encode(body []byte) string { return base64Mark + base64.RawStdEncoding.EncodeToString(body) }

func decode(s string) ([]byte, error) {
	text, ok := strings.CutPrefix(s, base64Mark)
	if !ok {
		return nil, notify.ErrCorrupt
	}
	return base64.RawStdEncoding.DecodeString(text)
}

// ceilSeconds converts to seconds and rounds up.
func ceilSeconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

// Enqueue implements engine.Queue. It sorts the messages by delay, so that messages that
// are due first are sent first. It sends up to Config.Parallel batches at the same time.
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
		slices.SortStableFunc(list, func(a, b *engine.Message) int { return int(ceilSeconds(a.Delay) - ceilSeconds(b.Delay)) })
		for len(list) > 0 {
			n, bytes := 0, 0
			var es []types.SendMessageBatchRequestEntry
			for n < min(len(list), perRequest) {
				body := encode(list[n].Body)
				if bytes += len(body); n > 0 && bytes > maxRequest {
					break
				}
				es = append(es, types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(n)), MessageBody: &body, DelaySeconds: ceilSeconds(list[n].Delay)})
				n++
			}
			list = list[n:]
			g.Go(func() error { return q.sendBatch(ctx, l, es) })
		}
	}
	return g.Wait()
}

// sendBatch sends one batch of messages to a lane. If SQS could not store some messages
// because of an internal error, sendBatch sends these messages again.
func (q *queue) sendBatch(ctx context.Context, l int, es []types.SendMessageBatchRequestEntry) error {
	url, err := q.queueURL(ctx, l)
	if err != nil {
		return err
	}
	return retryBatch(ctx, q.s, es, func(e types.SendMessageBatchRequestEntry) *string { return e.Id }, func(ctx context.Context, es []types.SendMessageBatchRequestEntry) ([]types.BatchResultErrorEntry, error) {
		out, err := q.s.api.SendMessageBatch(ctx, &api.SendMessageBatchInput{QueueUrl: url, Entries: es})
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	}, nil)
}

// retryBatch passes a batch to the function send. Then it passes the failed entries to send again,
// with growing pauses, until no entry fails or Config.Timeout is over. If an entry itself is
// wrong, retryBatch returns the error of the entry at once. An entry counts as done if the
// function ignore returns true for its error code.
func retryBatch[E any](ctx context.Context, s *Store, es []E, id func(E) *string, send func(context.Context, []E) ([]types.BatchResultErrorEntry, error), ignore func(code string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	for pause := (notify.Pause{}); ; {
		failed, err := send(ctx, es)
		if err != nil {
			return translate(err)
		}
		var again []E
		var last error
		for _, f := range failed {
			code := aws.ToString(f.Code)
			if ignore != nil && ignore(code) {
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

// Receive implements engine.Queue. It reads both lanes. If both lanes are empty, it waits
// for messages in the lane onTime. If no message arrives, it reads both lanes again.
func (q *queue) Receive(ctx context.Context, max int, visibility time.Duration) (out []engine.Delivery, err error) {
	if err := engine.CheckVisibility(visibility); err != nil {
		return nil, err
	}
	if max <= 0 {
		return nil, nil
	}
	for ctx.Err() == nil {
		if out, err = q.receiveReady(ctx, max, visibility); err != nil || len(out) > 0 {
			break
		}
		out, err = q.poll(ctx, onTime, min(max, perRequest), visibility, q.pollWait(ctx))
		if err != nil || len(out) > 0 {
			break
		}
	}
	if len(out) == 0 && ctx.Err() != nil {
		err = nil
	}
	if len(out) > 0 {
		err = nil // return the received messages; the next call gets the error again
	}
	return out, err
}

// pollWait returns how long SQS may wait for a message. The wait ends before the deadline
// of ctx, because no caller would get a message that arrives after the deadline. SQS can
// wait only whole seconds. So less than a second before the deadline, pollWait sleeps for a
// short time itself and returns 0.
func (q *queue) pollWait(ctx context.Context) time.Duration {
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

// receiveReady receives ready messages without waiting. It divides the number max between the two
// lanes as engine.BacklogShare requires.
func (q *queue) receiveReady(ctx context.Context, max int, visibility time.Duration) ([]engine.Delivery, error) {
	fromBacklog := q.backlogPart(max)
	var out []engine.Delivery
	get := func(l, n int) error {
		ds, err := q.receiveMany(ctx, l, n, visibility)
		out = append(out, ds...)
		q.countReceived(l, len(ds))
		return err
	}
	if err := get(backlog, fromBacklog); err != nil {
		return out, err
	}
	if err := get(onTime, max-len(out)); err != nil {
		return out, err
	}
	if len(out) < max { // the lane onTime has no more ready messages, so the rest may come from the backlog
		return out, get(backlog, max-len(out))
	}
	return out, nil
}

// backlogPart returns how many of the next n messages may come from the backlog while the
// lane onTime has ready messages.
func (q *queue) backlogPart(n int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return (q.sinceBacklog + n) / engine.BacklogShare
}

// countReceived counts n received messages of a lane, for the next call of backlogPart.
// sinceBacklog stays less than engine.BacklogShare. Otherwise a backlog that was empty for some
// time could later get more than its share.
func (q *queue) countReceived(l, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l == onTime {
		q.sinceBacklog = min(q.sinceBacklog+n, engine.BacklogShare-1)
	} else if n > 0 {
		q.sinceBacklog = 0
	}
}

// receiveMany receives up to n messages of a lane without waiting. It sends more requests
// only if the first request returned perRequest messages.
func (q *queue) receiveMany(ctx context.Context, l, n int, visibility time.Duration) ([]engine.Delivery, error) {
	if n <= 0 || ctx.Err() != nil {
		return nil, nil
	}
	out, err := q.poll(ctx, l, min(n, perRequest), visibility, 0)
	if err != nil || len(out) < perRequest {
		return out, err
	}
	more := n - len(out)
	found := make([][]engine.Delivery, (more+perRequest-1)/perRequest)
	var g errgroup.Group
	g.SetLimit(q.s.cfg.Parallel)
	for i := range found {
		size := min(more-i*perRequest, perRequest)
		g.Go(func() (err error) {
			found[i], err = q.poll(ctx, l, size, visibility, 0)
			return err
		})
	}
	err = g.Wait()
	return append(out, slices.Concat(found...)...), err
}

// poll sends one request for up to 10 messages. If ctx ends before the answer arrives, poll
// returns, but the request continues in its goroutine. SQS may already have given out
// messages for the request, and the goroutine releases these messages.
func (q *queue) poll(ctx context.Context, l, n int, visibility, wait time.Duration) ([]engine.Delivery, error) {
	url, err := q.queueURL(ctx, l)
	if err != nil || ctx.Err() != nil {
		return nil, err
	}
	type pollResult struct {
		ds  []engine.Delivery
		err error
	}
	results := make(chan pollResult)
	callerLeft := make(chan struct{}) // closed when poll returns
	uncancelled := context.WithoutCancel(ctx)
	limited, cancel := context.WithTimeout(uncancelled, q.s.cfg.Timeout+wait)
	defer close(callerLeft)
	q.polls.Go(func() {
		defer cancel()
		out, err := q.s.api.ReceiveMessage(limited, &api.ReceiveMessageInput{
			QueueUrl: url, MaxNumberOfMessages: int32(n), WaitTimeSeconds: ceilSeconds(wait),
			// The visibility is half a second longer than the caller wants. So this process
			// treats the receipt as invalid before SQS gives the message to another
			// process.
			VisibilityTimeout:           ceilSeconds(visibility + time.Second/2),
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameApproximateReceiveCount, types.MessageSystemAttributeNameSentTimestamp},
		})
		var r pollResult
		switch {
		case codeOf(err) == "OverLimit": // SQS allows no more messages in flight: pause, then return no message
			select {
			case <-time.After(time.Second):
			case <-callerLeft:
			}
		case err != nil:
			r.err = translate(err)
		default:
			for i := range out.Messages {
				if d, err := delivery(l, &out.Messages[i]); err == nil {
					r.ds = append(r.ds, d)
				} // an error means that another program sent the message, which is never acknowledged and so becomes dead
			}
			q.holdReceipts(r.ds, visibility)
		}
		select {
		case results <- r:
		case <-callerLeft:
			for i := range r.ds {
				_ = q.Release(uncancelled, r.ds[i].Receipt, 0) // if this fails, the visibility ends by itself
			}
		}
	})
	select {
	case r := <-results:
		return r.ds, r.err
	case <-ctx.Done():
		time.AfterFunc(wait+time.Second, cancel)
		return nil, nil
	}
}

// delivery converts a message of SQS to a Delivery. It returns an error if this package did
// not send the message. The receipt begins with the digit of the lane.
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
