package sqs

import (
	"context"
	"encoding/json"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Store makes queues of one account and region. Methods may be called from any
// goroutine.
type Store struct {
	cfg  Config
	api  *api.Client
	http aws.HTTPClient

	mu     sync.Mutex
	queues map[string]*queue
}

// Open checks cfg and returns a Store; it does not look whether SQS is there. With
// a region, queues are engine.Queue by Queue. Close it.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = setting.Fill(cfg)
	if err := setting.Err("sqs", &cfg); err != nil {
		return nil, err
	}
	if err := cfg.checkEndpoint(); err != nil {
		return nil, err
	}
	client, transport, err := cfg.client(ctx)
	if err != nil {
		return nil, err
	}
	return &Store{cfg: cfg, api: client, http: transport, queues: map[string]*queue{}}, nil
}

func (c Config) checkEndpoint() error {
	if c.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil {
		return bad("endpoint", "it is no http or https URL")
	}
	ip, err := netip.ParseAddr(u.Hostname())
	local := u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
	if u.Scheme == "http" && !local {
		return bad("endpoint", "http sends credentials' signatures and messages in the clear: use https")
	}
	return nil
}

// Queue returns the delay queue of a name, whose messages are given out at most
// maxReceives times, 1 to 1000. Processes that share it agree about that. The same
// name is the same queue, whatever maxReceives says the second time.
func (s *Store) Queue(name string, maxReceives int) (engine.Queue, error) {
	if !queueName.MatchString(s.cfg.Prefix + name) {
		return nil, notify.Invalid("bad_config", "sqs.prefix", "the queue "+s.cfg.Prefix+name+" has not 1 to 72 letters, digits, - and _")
	}
	return s.queue(name, maxReceives), nil
}

func (s *Store) queue(name string, maxReceives int) *queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[name]
	if q == nil {
		q = &queue{s: s, maxReceives: min(max(maxReceives, 1), 1000), held: map[string]time.Time{}}
		for l := range q.lanes {
			q.lanes[l].name = s.cfg.Prefix + name + suffixes[l]
		}
		s.queues[name] = q
	}
	return q
}

// Close waits for requests that were left behind, a second more than Wait at most,
// and closes connections.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		q.behind.Wait()
	}
	if c, ok := s.http.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
	return nil
}

// A queue is several of SQS.
const (
	onTime = iota
	backlog
	dead
)

var suffixes = [...]string{onTime: "", backlog: "-backlog", dead: "-dead"}

// retention is how long SQS keeps a message, the longest it can.
const retention = 14 * 24 * time.Hour

// Migrate makes the queues of q, a Queue of this store, and sets their attributes;
// again is the same as once. Messages are not touched.
func (s *Store) Migrate(ctx context.Context, q engine.Queue) error {
	mine, ok := q.(*queue)
	if !ok || mine.s != s {
		return notify.Invalid("bad_queue", "", "the queue is of another engine")
	}
	redrive := ""
	for _, l := range []int{dead, onTime, backlog} {
		lane := &mine.lanes[l]
		made, err := call(ctx, s, func(ctx context.Context) (*api.CreateQueueOutput, error) {
			return s.api.CreateQueue(ctx, &api.CreateQueueInput{QueueName: &lane.name})
		})
		if err != nil {
			return err
		}
		attributes := map[string]string{
			string(types.QueueAttributeNameMessageRetentionPeriod): strconv.Itoa(int(retention / time.Second)),
		}
		if l != dead {
			attributes[string(types.QueueAttributeNameRedrivePolicy)] = redrive
		}
		if _, err := call(ctx, s, func(ctx context.Context) (*api.SetQueueAttributesOutput, error) {
			return s.api.SetQueueAttributes(ctx, &api.SetQueueAttributesInput{QueueUrl: made.QueueUrl, Attributes: attributes})
		}); err != nil {
			return err
		}
		if l != dead {
			continue
		}
		got, err := call(ctx, s, func(ctx context.Context) (*api.GetQueueAttributesOutput, error) {
			return s.api.GetQueueAttributes(ctx, &api.GetQueueAttributesInput{QueueUrl: made.QueueUrl, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn}})
		})
		if err != nil {
			return err
		}
		policy, err := json.Marshal(map[string]any{"deadLetterTargetArn": got.Attributes["QueueArn"], "maxReceiveCount": mine.maxReceives})
		if err != nil {
			return err
		}
		redrive = string(policy)
	}
	return nil
}

// call bounds a request and translates its error.
func call[V any](ctx context.Context, s *Store, fn func(ctx context.Context) (V, error)) (V, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	v, err := fn(ctx)
	return v, translate(err)
}

// lane is one queue of SQS.
type lane struct {
	name string
	mu   sync.Mutex
	url  string // empty: not asked for
}

// at returns the URL of a lane's queue, which SQS gives for its name.
func (q *queue) at(ctx context.Context, l int) (*string, error) {
	lane := &q.lanes[l]
	lane.mu.Lock()
	defer lane.mu.Unlock()
	if lane.url == "" {
		got, err := call(ctx, q.s, func(ctx context.Context) (*api.GetQueueUrlOutput, error) {
			return q.s.api.GetQueueUrl(ctx, &api.GetQueueUrlInput{QueueName: &lane.name})
		})
		if err != nil {
			return nil, err
		}
		lane.url = aws.ToString(got.QueueUrl)
	}
	return aws.String(lane.url), nil
}
