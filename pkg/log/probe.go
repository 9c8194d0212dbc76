package log

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/setting"
)

// ProbeConfig configures a Probe. The zero value of a field means its default.
type ProbeConfig struct {
	Conn Conn
	// Every is the interval of pings. Default 250 ms.
	Every time.Duration
	// Timeout is the longest wait for an answer to a ping. Default 500 ms.
	Timeout time.Duration
}

// Probe checks whether at least one broker answers. It notices a dead broker in about 0.1 s and a
// frozen broker after Timeout. A producer with running requests needs two seconds to notice a frozen
// broker. Probe does not notice that a partition has lost its leader.
type Probe struct {
	cfg ProbeConfig
	cl  *kgo.Client
	err atomic.Pointer[error]
}

var (
	errNotAsked = errors.New("the first ping to the brokers is not answered yet")
	errNoAnswer = errors.New("no broker answers")
)

// NewProbe returns a probe. Its method Err reports the log as unavailable until Run gets the first
// answer.
func NewProbe(cfg ProbeConfig) (*Probe, error) {
	cfg.Conn = setting.Fill(cfg.Conn)
	cfg.Every = cmp.Or(cfg.Every, 250*time.Millisecond)
	cfg.Timeout = cmp.Or(cfg.Timeout, 500*time.Millisecond)
	if err := cfg.Conn.validate(); err != nil {
		return nil, err
	}
	// The probe has its own client. In a shared client, a retry or a large request before the ping
	// would delay the result.
	cl, err := cfg.Conn.client(
		kgo.RequestRetries(0), kgo.RetryTimeout(cfg.Timeout), kgo.RequestTimeoutOverhead(cfg.Timeout))
	if err != nil {
		return nil, fmt.Errorf("log: creating the client of the probe: %w", err)
	}
	p := &Probe{cfg: cfg, cl: cl}
	err = translate(errNotAsked)
	p.err.Store(&err)
	return p, nil
}

// Run sends pings until ctx ends, and then closes the client.
func (p *Probe) Run(ctx context.Context) error {
	defer p.cl.Close()
	tick := time.NewTicker(p.cfg.Every)
	defer tick.Stop()
	for ctx.Err() == nil {
		p.pingOnce(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// pingOnce sends one ping. It stores the result after Timeout at the latest. The client alone may take
// longer: it ignores its context while it opens a connection, and then it tries the next broker.
func (p *Probe) pingOnce(ctx context.Context) {
	asking, stop := context.WithTimeout(ctx, p.cfg.Timeout)
	defer stop()
	answer := make(chan error, 1)
	go func() { answer <- p.cl.Ping(asking) }()
	select {
	case err := <-answer:
		p.set(err)
	case <-asking.Done():
		p.set(errNoAnswer)
		<-answer //nolint:errcheck // only one ping may run at a time
	}
}

func (p *Probe) set(err error) {
	err = translate(err)
	p.err.Store(&err)
}

// Err returns nil if the last ping was answered. Otherwise it returns KindUnavailable with the error
// code "log". It costs one atomic load.
func (p *Probe) Err() error { return *p.err.Load() }
