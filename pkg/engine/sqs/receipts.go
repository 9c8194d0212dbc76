package sqs

import (
	"context"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/engine"
)

// hold remembers that deliveries are this process's for visibility from now.
func (q *queue) hold(ds []engine.Delivery, visibility time.Duration) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range ds {
		q.held[ds[i].Receipt] = now.Add(visibility)
	}
	if len(q.held) < q.sweep {
		return
	}
	for r, until := range q.held {
		if !until.After(now) {
			delete(q.held, r)
		}
	}
	q.sweep = max(2*len(q.held), 1024)
}

// current returns the receipts that are not over, by lane.
func (q *queue) current(receipts []string) (by [3][]string) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range receipts {
		if len(r) < 2 || r[0] < '0' || r[0] > '0'+backlog {
			continue
		}
		if q.held[r].After(now) {
			l := r[0] - '0'
			by[l] = append(by[l], r)
		}
	}
	return by
}

func (q *queue) let(receipts []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range receipts {
		delete(q.held, r)
	}
}

// batches does something with receipts, 10 at a time and some of those at once.
func (q *queue) batches(ctx context.Context, by [3][]string, do func(ctx context.Context, url *string, receipts []string) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(q.s.cfg.Parallel)
	for l, list := range by {
		for len(list) > 0 {
			some := list[:min(len(list), perRequest)]
			list = list[len(some):]
			g.Go(func() error {
				url, err := q.at(ctx, l)
				if err != nil {
					return err
				}
				return do(ctx, url, some)
			})
		}
	}
	return g.Wait()
}

func (q *queue) Ack(ctx context.Context, receipts []string) error {
	return q.batches(ctx, q.current(receipts), func(ctx context.Context, url *string, some []string) error {
		es := make([]types.DeleteMessageBatchRequestEntry, len(some))
		for i, r := range some {
			es[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(r[1:])}
		}
		err := retried(ctx, q.s, es, func(e types.DeleteMessageBatchRequestEntry) *string { return e.Id }, func(ctx context.Context, es []types.DeleteMessageBatchRequestEntry) ([]types.BatchResultErrorEntry, error) {
			out, err := q.s.api.DeleteMessageBatch(ctx, &api.DeleteMessageBatchInput{QueueUrl: url, Entries: es})
			if err != nil {
				return nil, err
			}
			return out.Failed, nil
		}, over)
		if err == nil {
			q.let(some)
		}
		return err
	})
}

func (q *queue) Extend(ctx context.Context, receipts []string, visibility time.Duration) error {
	if err := engine.CheckVisibility(visibility); err != nil {
		return err
	}
	by := q.current(receipts)
	return q.batches(ctx, by, func(ctx context.Context, url *string, some []string) error {
		until := time.Now().Add(visibility)
		if err := q.show(ctx, url, some, seconds(visibility+time.Second/2)); err != nil {
			return err
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, r := range some {
			if _, ok := q.held[r]; ok { // not acknowledged meanwhile
				q.held[r] = until
			}
		}
		return nil
	})
}

// show makes messages visible in so many seconds.
func (q *queue) show(ctx context.Context, url *string, some []string, in int32) error {
	es := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(some))
	for i, r := range some {
		es[i] = types.ChangeMessageVisibilityBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(r[1:]), VisibilityTimeout: in}
	}
	return retried(ctx, q.s, es, func(e types.ChangeMessageVisibilityBatchRequestEntry) *string { return e.Id }, func(ctx context.Context, es []types.ChangeMessageVisibilityBatchRequestEntry) ([]types.BatchResultErrorEntry, error) {
		out, err := q.s.api.ChangeMessageVisibilityBatch(ctx, &api.ChangeMessageVisibilityBatchInput{QueueUrl: url, Entries: es})
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	}, over)
}

func (q *queue) Release(ctx context.Context, receipt string, delay time.Duration) error {
	if err := engine.CheckDelay(delay); err != nil {
		return err
	}
	by := q.current([]string{receipt})
	return q.batches(ctx, by, func(ctx context.Context, url *string, some []string) error {
		err := q.show(ctx, url, some, seconds(delay))
		if err == nil {
			q.let(some)
		}
		return err
	})
}

// Depth adds up what SQS says of the three queues; approximate, and without
// Oldest.
func (q *queue) Depth(ctx context.Context) (d engine.QueueDepth, err error) {
	var of [3][3]int // lane: visible, delayed, in flight
	names := [...]types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesDelayed, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible}
	g, ctx := errgroup.WithContext(ctx)
	for l := range of {
		g.Go(func() error {
			url, err := q.at(ctx, l)
			if err != nil {
				return err
			}
			out, err := call(ctx, q.s, func(ctx context.Context) (*api.GetQueueAttributesOutput, error) {
				return q.s.api.GetQueueAttributes(ctx, &api.GetQueueAttributesInput{QueueUrl: url, AttributeNames: names[:]})
			})
			if err != nil {
				return err
			}
			for i, name := range names {
				if of[l][i], err = strconv.Atoi(out.Attributes[string(name)]); err != nil {
					return translate(err)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return d, err
	}
	late := of[backlog]
	return engine.QueueDepth{
		Ready: of[onTime][0] + late[0], Delayed: of[onTime][1] + late[1], InFlight: of[onTime][2] + late[2],
		Dead:    of[dead][0] + of[dead][1] + of[dead][2],
		Backlog: late[0] + late[1] + late[2],
	}, nil
}
