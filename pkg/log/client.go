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

// Conn holds the connection settings that all clients of this package share.
type Conn struct {
	// Brokers are the first brokers to connect to, host:port. Required.
	Brokers []string
	// ClientID is our name in the brokers' logs and quotas.
	ClientID string `default:"notifyd"`
	// TLS configures the TLS of every connection. If it is not enabled, connections are not encrypted.
	TLS secrets.TLS
	// SASL authenticates every connection. nil: no authentication.
	SASL *SASL
	// Rack is our rack, in the form of the brokers' broker.rack. Records are then read from a replica
	// in the same rack, if the brokers allow it (replica.selector.class). Empty: records are read from
	// the leaders.
	Rack string
	// Prefix is added before the name of every topic and consumer group at the brokers. It cannot be
	// used together with Local. Default: no prefix.
	Prefix string
	// Dial replaces the default dialer, for the embedded log and for tests. It cannot be used together
	// with TLS. Default: TCP with a timeout of 500 ms.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Local reads records without the network, for the embedded log. nil: records are fetched from the
	// brokers.
	Local Local
	// Counter, if set, counts the requests to the brokers.
	Counter *Counter
	// Logger gets the client library's warnings and errors.
	Logger *slog.Logger `default:"discard"`
}

func (c Conn) validate() error {
	switch {
	case len(c.Brokers) == 0:
		return errors.New("log: no broker is given; give at least one broker as host:port")
	case c.Local != nil && c.Prefix != "":
		return errors.New("log: a prefix (Conn.Prefix) cannot be used with a log in this process (Conn.Local)")
	case c.Dial != nil && c.TLS.Enabled:
		return errors.New("log: a dialer (Conn.Dial) cannot be combined with TLS")
	}
	_, err := c.options()
	return err
}

// metadataAge is the time after which every client knows new partitions of a topic.
// cluster.RaiseSpread makes processes use new partitions only later. Its delay must be far longer
// than metadataAge.
const metadataAge = 15 * time.Second

// dialTimeout bounds a connect, so that a client notices a dead host within a second.
// handshakeTimeout bounds the TLS handshake and is longer: a busy broker continues a handshake even
// after the client has stopped waiting, so each new attempt would add to its load.
const (
	dialTimeout      = 500 * time.Millisecond
	handshakeTimeout = 5 * time.Second
)

// backoff returns the wait before a request or a connection is retried. The first wait is short,
// because the new leader of a partition is usually known at once. The wait doubles up to 800 ms. It
// has jitter, so that many clients do not retry at the same moment.
func backoff(fails int) time.Duration {
	wait := 50 * time.Millisecond << min(max(fails-1, 0), 4)
	return wait*3/4 + rand.N(wait/2)
}

// dialTLS returns a dialer that connects within dialTimeout and completes the TLS handshake within
// handshakeTimeout.
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

// client returns a client with the options that all clients share and with the options in the
// parameter more. It does not connect.
func (c Conn) client(more ...kgo.Opt) (*kgo.Client, error) {
	opts, err := c.options()
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(append(opts, more...)...)
}

// options returns the options that all clients share. Clients retry quickly and refresh metadata
// often. So they find the new leader of a partition sooner than with franz-go's defaults.
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

// bridge passes franz-go's log lines to slog.
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
