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

// Store gives access to the queues of one account and region. Any goroutine may call its
// methods.
type Store struct {
	cfg  Config
	api  *api.Client
	http aws.HTTPClient

	mu     sync.Mutex
	queues map[string]*queue
}

// Open checks cfg and returns a Store. It does not check whether SQS answers. The caller
// must call Close.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = setting.Fill(cfg)
	if err := setting.Err("sqs", &cfg); err != nil {
		return nil, err
	}
	if err := cfg.checkEndpoint(); err != nil {
		return nil, err
	}
	client, transport, err := cfg.newClient(ctx)
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
		return configError("endpoint", "must be an http or https URL")
	}
	ip, err := netip.ParseAddr(u.Hostname())
	local := u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
	if u.Scheme == "http" && !local {
		return configError("endpoint", "http sends messages and the signatures of credentials unencrypted: use https")
	}
	return nil
}

// Queue returns the delay queue with this name. Each message is received at most
// maxReceives times, 1 to 1000. All processes that share the queue must use the same
// maxReceives. A second call with the same name returns the same queue and ignores
// maxReceives.
func (s *Store) Queue(name string, maxReceives int) (engine.Queue, error) {
	if !queueName.MatchString(s.cfg.Prefix + name) {
		return nil, notify.Invalid("bad_config", "sqs.prefix", "the queue name "+s.cfg.Prefix+name+` must have 1 to 72 characters, only letters, digits, "-" and "_": change sqs.prefix`)
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
			q.lanes[l].name = s.cfg.Prefix + name + laneSuffixes[l]
		}
		s.queues[name] = q
	}
	return q
}

// Close waits for requests that still run although the Receive that sent them has returned. After
// Receive has returned, such a request takes at most Config.Wait plus one second. Then Close closes
// the connections.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		q.polls.Wait()
	}
	if c, ok := s.http.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
	return nil
}

// These are the lanes of a queue. Each lane is one queue of SQS.
const (
	onTime = iota
	backlog
	dead
)

var laneSuffixes = [...]string{onTime: "", backlog: "-backlog", dead: "-dead"}

// retention is how long SQS keeps a message. It is the longest time that SQS allows.
const retention = 14 * 24 * time.Hour

// Migrate creates the three queues of dq and sets their attributes. dq must be a Queue of
// this Store. Migrate may be called again. It does not change messages.
func (s *Store) Migrate(ctx context.Context, dq engine.Queue) error {
	q, ok := dq.(*queue)
	if !ok || q.s != s {
		return notify.Invalid("bad_queue", "", "the delay queue to migrate is not a queue of SQS")
	}
	redrive := ""
	for _, l := range []int{dead, onTime, backlog} {
		lane := &q.lanes[l]
		created, err := withTimeout(ctx, s, func(ctx context.Context) (*api.CreateQueueOutput, error) {
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
		if _, err := withTimeout(ctx, s, func(ctx context.Context) (*api.SetQueueAttributesOutput, error) {
			return s.api.SetQueueAttributes(ctx, &api.SetQueueAttributesInput{QueueUrl: created.QueueUrl, Attributes: attributes})
		}); err != nil {
			return err
		}
		if l != dead {
			continue
		}
		got, err := withTimeout(ctx, s, func(ctx context.Context) (*api.GetQueueAttributesOutput, error) {
			return s.api.GetQueueAttributes(ctx, &api.GetQueueAttributesInput{QueueUrl: created.QueueUrl, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn}})
		})
		if err != nil {
			return err
		}
		policy, err := json.Marshal(map[string]any{"deadLetterTargetArn": got.Attributes["QueueArn"], "maxReceiveCount": q.maxReceives})
		if err != nil {
			return err
		}
		redrive = string(policy)
	}
	return nil
}

// withTimeout calls fn with a context that ends after Config.Timeout. It returns the error of fn as
// translate converts it.
func withTimeout[V any](ctx context.Context, s *Store, fn func(ctx context.Context) (V, error)) (V, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	v, err := fn(ctx)
	return v, translate(err)
}

// lane is one queue of SQS.
type lane struct {
	name string
	mu   sync.Mutex
	url  string // empty until queueURL has asked SQS; guarded by mu
}

// queueURL returns the URL of a lane's queue. The first call requests the URL from SQS by
// the name of the queue.
func (q *queue) queueURL(ctx context.Context, l int) (*string, error) {
	lane := &q.lanes[l]
	lane.mu.Lock()
	defer lane.mu.Unlock()
	if lane.url == "" {
		got, err := withTimeout(ctx, q.s, func(ctx context.Context) (*api.GetQueueUrlOutput, error) {
			return q.s.api.GetQueueUrl(ctx, &api.GetQueueUrlInput{QueueName: &lane.name})
		})
		if err != nil {
			return nil, err
		}
		lane.url = aws.ToString(got.QueueUrl)
	}
	return aws.String(lane.url), nil
}
