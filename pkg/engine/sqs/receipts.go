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

// holdReceipts marks the receipts of the deliveries as valid. They are valid from now until the
// given visibility has passed.
func (q *queue) holdReceipts(ds []engine.Delivery, visibility time.Duration) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range ds {
		q.held[ds[i].Receipt] = now.Add(visibility)
	}
	if len(q.held) < q.sweepSize {
		return
	}
	for r, until := range q.held {
		if !until.After(now) {
			delete(q.held, r)
		}
	}
	q.sweepSize = max(2*len(q.held), 1024)
}

// validReceipts returns the receipts whose visibility has not ended, by lane.
func (q *queue) validReceipts(receipts []string) (byLane [3][]string) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range receipts {
		if len(r) < 2 || r[0] < '0' || r[0] > '0'+backlog {
			continue
		}
		if q.held[r].After(now) {
			l := r[0] - '0'
			byLane[l] = append(byLane[l], r)
		}
	}
	return byLane
}

func (q *queue) forgetReceipts(receipts []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range receipts {
		delete(q.held, r)
	}
}

// eachBatch calls fn with batches of up to 10 receipts. Up to Config.Parallel calls of fn
// run at the same time.
func (q *queue) eachBatch(ctx context.Context, byLane [3][]string, fn func(ctx context.Context, url *string, receipts []string) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(q.s.cfg.Parallel)
	for l, list := range byLane {
		for len(list) > 0 {
			batch := list[:min(len(list), perRequest)]
			list = list[len(batch):]
			g.Go(func() error {
				url, err := q.queueURL(ctx, l)
				if err != nil {
					return err
				}
				return fn(ctx, url, batch)
			})
		}
	}
	return g.Wait()
}

func (q *queue) Ack(ctx context.Context, receipts []string) error {
	return q.eachBatch(ctx, q.validReceipts(receipts), func(ctx context.Context, url *string, batch []string) error {
		es := make([]types.DeleteMessageBatchRequestEntry, len(batch))
		for i, r := range batch {
			es[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(r[1:])}
		}
		err := retryBatch(ctx, q.s, es, func(e types.DeleteMessageBatchRequestEntry) *string { return e.Id }, func(ctx context.Context, es []types.DeleteMessageBatchRequestEntry) ([]types.BatchResultErrorEntry, error) {
			out, err := q.s.api.DeleteMessageBatch(ctx, &api.DeleteMessageBatchInput{QueueUrl: url, Entries: es})
			if err != nil {
				return nil, err
			}
			return out.Failed, nil
		}, isReceiptOver)
		if err == nil {
			q.forgetReceipts(batch)
		}
		return err
	})
}

func (q *queue) Extend(ctx context.Context, receipts []string, visibility time.Duration) error {
	if err := engine.CheckVisibility(visibility); err != nil {
		return err
	}
	byLane := q.validReceipts(receipts)
	return q.eachBatch(ctx, byLane, func(ctx context.Context, url *string, batch []string) error {
		until := time.Now().Add(visibility)
		if err := q.setVisibility(ctx, url, batch, ceilSeconds(visibility+time.Second/2)); err != nil {
			return err
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, r := range batch {
			if _, ok := q.held[r]; ok { // false if the message was acknowledged during the request
				q.held[r] = until
			}
		}
		return nil
	})
}

// setVisibility makes messages visible again after the given number of seconds.
func (q *queue) setVisibility(ctx context.Context, url *string, batch []string, seconds int32) error {
	es := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(batch))
	for i, r := range batch {
		es[i] = types.ChangeMessageVisibilityBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(r[1:]), VisibilityTimeout: seconds}
	}
	return retryBatch(ctx, q.s, es, func(e types.ChangeMessageVisibilityBatchRequestEntry) *string { return e.Id }, func(ctx context.Context, es []types.ChangeMessageVisibilityBatchRequestEntry) ([]types.BatchResultErrorEntry, error) {
		out, err := q.s.api.ChangeMessageVisibilityBatch(ctx, &api.ChangeMessageVisibilityBatchInput{QueueUrl: url, Entries: es})
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	}, isReceiptOver)
}

func (q *queue) Release(ctx context.Context, receipt string, delay time.Duration) error {
	if err := engine.CheckDelay(delay); err != nil {
		return err
	}
	byLane := q.validReceipts([]string{receipt})
	return q.eachBatch(ctx, byLane, func(ctx context.Context, url *string, batch []string) error {
		err := q.setVisibility(ctx, url, batch, ceilSeconds(delay))
		if err == nil {
			q.forgetReceipts(batch)
		}
		return err
	})
}

// Depth adds up the counts of the three queues. The counts of SQS are approximate. The field
// Oldest stays empty, because SQS does not return this time.
func (q *queue) Depth(ctx context.Context) (d engine.QueueDepth, err error) {
	var counts [3][3]int // by lane: visible, delayed, in flight
	names := [...]types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesDelayed, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible}
	g, ctx := errgroup.WithContext(ctx)
	for l := range counts {
		g.Go(func() error {
			url, err := q.queueURL(ctx, l)
			if err != nil {
				return err
			}
			out, err := withTimeout(ctx, q.s, func(ctx context.Context) (*api.GetQueueAttributesOutput, error) {
				return q.s.api.GetQueueAttributes(ctx, &api.GetQueueAttributesInput{QueueUrl: url, AttributeNames: names[:]})
			})
			if err != nil {
				return err
			}
			for i, name := range names {
				if counts[l][i], err = strconv.Atoi(out.Attributes[string(name)]); err != nil {
					return translate(err)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return d, err
	}
	late := counts[backlog]
	return engine.QueueDepth{
		Ready: counts[onTime][0] + late[0], Delayed: counts[onTime][1] + late[1], InFlight: counts[onTime][2] + late[2],
		Dead:    counts[dead][0] + counts[dead][1] + counts[dead][2],
		Backlog: late[0] + late[1] + late[2],
	}, nil
}
