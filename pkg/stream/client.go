package stream

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Conn says how to reach the brokers. It is shared by everything here.
type Conn struct {
	// Brokers are the seeds, host:port. Required.
	Brokers []string
	// ClientID is how the brokers' logs and quotas name us. Default "notifyd".
	ClientID string
	// TLS is used for every connection when set. Default: plain.
	TLS *tls.Config
	// User and Password turn on SASL/SCRAM-SHA-512 when User is set.
	User     string
	Password string
	// Dial replaces the dialer; TLS is then up to it. Default: TCP, 500 ms.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Local reads records without the network, where the log is in this process.
	// Default: they are fetched.
	Local Local
	// Logger gets what the client library says, from warnings up. Default: nothing.
	Logger *slog.Logger
}

func (c Conn) withDefaults() Conn {
	if c.ClientID == "" {
		c.ClientID = "notifyd"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Conn) validate() error {
	if len(c.Brokers) == 0 {
		return fmt.Errorf("stream: no brokers")
	}
	return nil
}

// dialTimeout bounds a connect: a dead host must be known within a second.
const dialTimeout = 500 * time.Millisecond

// options are what every client here has in common. Retries come fast and
// metadata is never older than it must be, so that a moved leader is found at
// once; the defaults of the library are made for patience.
func (c Conn) options() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.ClientID),
		kgo.SoftwareNameAndVersion("notifyd", "1"),
		kgo.DisableClientMetrics(),
		kgo.RequestTimeoutOverhead(time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.WithLogger(bridge{c.Logger}),
	}
	if c.Dial != nil {
		opts = append(opts, kgo.Dialer(c.Dial))
	} else {
		opts = append(opts, kgo.DialTimeout(dialTimeout))
		if c.TLS != nil {
			opts = append(opts, kgo.DialTLSConfig(c.TLS.Clone()))
		}
	}
	if c.User != "" {
		opts = append(opts, kgo.SASL(scram.Auth{User: c.User, Pass: c.Password}.AsSha512Mechanism()))
	}
	return opts
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
