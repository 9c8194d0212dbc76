package sqs

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	api "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/notifyd/notifyd/pkg/engine"
)

const (
	// maxInFlight is how many messages of a queue may be in flight. When that many messages
	// are in flight, SQS returns no more messages.
	maxInFlight = 120_000
	// maxClockSkew is the allowed difference between the clocks of SQS and of this process. If
	// they differ by five minutes, SQS refuses every request.
	maxClockSkew = time.Minute
)

// Doctor checks the three queues of dq. dq must be a Queue of this Store. A check of one queue
// takes at most Config.Timeout for each of its two requests.
func (s *Store) Doctor(ctx context.Context, dq engine.Queue) (fs engine.Findings) {
	q, ok := dq.(*queue)
	if !ok || q.s != s {
		return engine.Findings{{Check: "sqs", Level: "fail", Detail: "the delay queue is of another engine", Repair: "report this: it is a mistake of notifyd"}}
	}
	add := fs.Add
	arn := ""
	for _, l := range []int{dead, onTime, backlog} {
		name := q.lanes[l].name
		check := "sqs " + name
		url, err := q.queueURL(ctx, l)
		var got *api.GetQueueAttributesOutput
		if err == nil {
			got, err = withTimeout(ctx, s, func(ctx context.Context) (*api.GetQueueAttributesOutput, error) {
				return s.api.GetQueueAttributes(ctx, &api.GetQueueAttributesInput{QueueUrl: url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
			})
		}
		if err != nil {
			repair := "check sqs.region, sqs.endpoint and the network"
			switch codeOf(err) {
			case "NonExistentQueue", "QueueDoesNotExist":
				repair = "run notifyd migrate up"
			case "": // SQS did not answer
			default:
				repair = "check sqs.credentials_file and the policy of the queue"
			}
			add(check, true, "fail", repair, "%v", err)
			continue
		}
		count := func(name types.QueueAttributeName) int {
			n, _ := strconv.Atoi(got.Attributes[string(name)]) // SQS always returns a number
			return n
		}
		ready, delayed, held := count(types.QueueAttributeNameApproximateNumberOfMessages), count(types.QueueAttributeNameApproximateNumberOfMessagesDelayed), count(types.QueueAttributeNameApproximateNumberOfMessagesNotVisible)
		if l == dead {
			arn = got.Attributes[string(types.QueueAttributeNameQueueArn)]
			add(check, ready+held > 0, "warn", "find out from its messages what makes dispatchers end, repair that, and remove the messages; notifyctl reconcile sends the triggers that are still due", "about %d dead messages", ready+held)
			if skew, ok := awsmiddleware.GetAttemptSkew(got.ResultMetadata); ok {
				add("sqs clock", skew.Abs() > maxClockSkew, "warn", "let NTP or chrony set this machine's clock: at 5 minutes SQS refuses all requests", "the clock of SQS differs by %s from the clock of this machine", skew.Round(time.Second)) // SQS sends its time in whole seconds
			}
			continue
		}
		var redrive struct {
			Target string `json:"deadLetterTargetArn"`
			Max    any    `json:"maxReceiveCount"` // a number, or a number in quotes
		}
		policy := got.Attributes[string(types.QueueAttributeNameRedrivePolicy)]
		wrong := json.Unmarshal([]byte(policy), &redrive) != nil || fmt.Sprint(redrive.Max) != strconv.Itoa(q.maxReceives) || arn != "" && redrive.Target != arn
		kept := time.Duration(count(types.QueueAttributeNameMessageRetentionPeriod)) * time.Second // 0: the server keeps messages without limit
		switch {
		case wrong:
			add(check, true, "fail", "run notifyd migrate up", "the redrive policy of the queue is not the policy that notifyd migrate sets: %q", policy)
		case kept > 0 && kept < retention:
			add(check, true, "warn", "run notifyd migrate up", "the queue keeps messages for %s, but it must keep them for %s", kept, retention)
		default:
			add(check, held > maxInFlight*3/4, "warn", fmt.Sprintf("start more dispatchers, or find why callbacks hang: at %d messages in flight SQS returns no more", maxInFlight), "about %d messages are ready, %d delayed and %d in flight", ready, delayed, held)
		}
	}
	return fs
}
