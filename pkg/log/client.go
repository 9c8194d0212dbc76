package log

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/secrets"
)

// Conn says how to reach the brokers. It is shared by everything here.
type Conn struct {
	// Brokers are the seeds, host:port. Required.
	Brokers []string
	// ClientID is how the brokers' logs and quotas name us.
	ClientID string `default:"notifyd"`
	// TLS is used for every connection where it is enabled.
	TLS secrets.TLS
	// SASL authenticates every connection when set. Default: nobody in particular.
	SASL *SASL
	// Rack is where we stand, as the brokers' broker.rack says it: records are then
	// read from a replica of the same rack where the brokers allow it
	// (replica.selector.class). Default: from the leaders.
	Rack string
	// Prefix stands before the name of every topic and every consumer group at the brokers.
	// Not with Local. Default: none.
	Prefix string
	// Dial replaces the dialer, where the log is in this process and in tests; not with
	// TLS. Default: TCP, 500 ms.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Local reads records without the network, where the log is in this process.
	// Default: they are fetched.
	Local Local
	// Counter, when set, counts what is asked of the brokers.
	Counter *Counter
	// Logger gets what the client library says, from warnings up.
	Logger *slog.Logger `default:"discard"`
}

func (c Conn) validate() error {
	switch {
	case len(c.Brokers) == 0:
		return errors.New("stream: no brokers")
	case c.Local != nil && c.Prefix != "":
		return errors.New("stream: a log in this process has no prefix")
	case c.Dial != nil && c.TLS.Enabled:
		return errors.New("stream: a dialer of its own and TLS")
	}
	_, err := c.options()
	return err
}

// metadataAge is how soon a client knows of partitions that were added to a topic. It is
// far below the time between making them and using them (cluster.RaiseSpread).
const metadataAge = 15 * time.Second

// dialTimeout bounds a connect: a dead host must be known within a second. A TLS
// handshake has longer: a busy broker works on it whether we still wait or not, and
// clients that give up and come again add to that.
const (
	dialTimeout      = 500 * time.Millisecond
	handshakeTimeout = 5 * time.Second
)

// backoff is the wait before a request or a connection is tried again: soon at
// first, for a leader that has moved is found at once, then doubling up to 800 ms; of
// many clients no two at the same moment.
func backoff(fails int) time.Duration {
	wait := 50 * time.Millisecond << min(max(fails-1, 0), 4)
	return wait*3/4 + rand.N(wait/2)
}

// dialTLS connects and shakes hands, each within its own bound.
func dialTLS(conf *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	d := &net.Dialer{Timeout: dialTimeout}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := conf.Clone()
		if c.ServerName == "" {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				_ = raw.Close()
				return nil, err
			}
			c.ServerName = host
		}
		secure := tls.Client(raw, c)
		ctx, stop := context.WithTimeout(ctx, handshakeTimeout)
		defer stop()
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		return secure, nil
	}
}

// client returns a client with what every one here has in common. It does not
// connect.
func (c Conn) client(more ...kgo.Opt) (*kgo.Client, error) {
	opts, err := c.options()
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(append(opts, more...)...)
}

// options are those common ones. Retries come fast and metadata is never older
// than it must be, so that a moved leader is found at once; the defaults of the
// library are made for patience.
func (c Conn) options() ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.ClientID),
		kgo.SoftwareNameAndVersion("notifyd", "1"),
		kgo.DisableClientMetrics(),
		kgo.RequestTimeoutOverhead(time.Second),
		kgo.RetryBackoffFn(backoff),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.MetadataMaxAge(metadataAge),
		kgo.WithLogger(bridge{c.Logger}),
	}
	if c.Counter != nil {
		opts = append(opts, kgo.WithHooks(c.Counter))
	}
	if c.Rack != "" {
		opts = append(opts, kgo.Rack(c.Rack))
	}
	switch {
	case c.Dial != nil:
		opts = append(opts, kgo.Dialer(c.Dial))
	case c.TLS.Enabled:
		cfg, err := c.TLS.Config("kafka.tls")
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.Dialer(dialTLS(cfg)))
	default:
		opts = append(opts, kgo.DialTimeout(dialTimeout))
	}
	if c.SASL != nil {
		m, err := c.SASL.mechanism(c.TLS.Enabled)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.SASL(m))
	}
	return opts, nil
}

// bridge hands the library's warnings and errors to slog.
type bridge struct{ log *slog.Logger }

func (b bridge) Level() kgo.LogLevel {
	if b.log.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelWarn
}

func (b bridge) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	at := slog.LevelDebug
	switch level {
	case kgo.LogLevelError:
		at = slog.LevelError
	case kgo.LogLevelWarn:
		at = slog.LevelWarn
	}
	b.log.Log(context.Background(), at, "kafka client: "+msg, keyvals...)
}
