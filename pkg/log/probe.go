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
	// Every is how often the brokers are asked. Default 250 ms.
	Every time.Duration
	// Timeout is how long an answer may take. Default 500 ms.
	Timeout time.Duration
}

// Probe watches whether any broker answers. A dead one is seen in about 0.1 s
// and a frozen one in Timeout, where a producer that has requests in flight
// needs two seconds. A partition that has lost its leader it does not see.
type Probe struct {
	cfg ProbeConfig
	cl  *kgo.Client
	err atomic.Pointer[error]
}

var (
	errNotAsked = errors.New("not asked yet")
	errNoAnswer = errors.New("no broker answers")
)

// NewProbe returns a probe that reports the log unavailable until Run has had a
// first answer.
func NewProbe(cfg ProbeConfig) (*Probe, error) {
	cfg.Conn = setting.Fill(cfg.Conn)
	cfg.Every = cmp.Or(cfg.Every, 250*time.Millisecond)
	cfg.Timeout = cmp.Or(cfg.Timeout, 500*time.Millisecond)
	if err := cfg.Conn.validate(); err != nil {
		return nil, err
	}
	// A client of its own: a retry, or a request queued behind a large one,
	// would blur what is measured.
	cl, err := cfg.Conn.client(
		kgo.RequestRetries(0), kgo.RetryTimeout(cfg.Timeout), kgo.RequestTimeoutOverhead(cfg.Timeout))
	if err != nil {
		return nil, fmt.Errorf("stream: probe: %w", err)
	}
	p := &Probe{cfg: cfg, cl: cl}
	err = translate(errNotAsked)
	p.err.Store(&err)
	return p, nil
}

// Run asks until ctx ends.
func (p *Probe) Run(ctx context.Context) error {
	defer p.cl.Close()
	tick := time.NewTicker(p.cfg.Every)
	defer tick.Stop()
	for ctx.Err() == nil {
		p.ask(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// ask pings once. The verdict falls at Timeout, whatever the client does: while
// it opens a connection it does not look at its context, and it goes on to the
// next broker.
func (p *Probe) ask(ctx context.Context) {
	asking, stop := context.WithTimeout(ctx, p.cfg.Timeout)
	defer stop()
	answer := make(chan error, 1)
	go func() { answer <- p.cl.Ping(asking) }()
	select {
	case err := <-answer:
		p.set(err)
	case <-asking.Done():
		p.set(errNoAnswer)
		<-answer //nolint:errcheck // one question at a time
	}
}

func (p *Probe) set(err error) {
	err = translate(err)
	p.err.Store(&err)
}

// Err is nil when the last question was answered, else KindUnavailable with
// code "log". It costs one atomic load.
func (p *Probe) Err() error { return *p.err.Load() }
