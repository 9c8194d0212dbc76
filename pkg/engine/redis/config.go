package redis

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Config says where Redis is and how to speak to it.
type Config struct {
	// Addrs are host:port of the server, of the sentinels if Master is set, or
	// of some nodes of a cluster if Cluster is. At least one.
	Addrs []string
	// Master is the name that sentinels know the server by.
	Master string
	// Cluster says that Addrs are nodes of a cluster; DB must be 0 then.
	Cluster bool
	// DB is the number of the database, 0 to 15 by Redis's default.
	DB int

	// Username and Password of the server; both empty: it asks for none. The
	// sentinels' own may differ. None of them is ever logged.
	Username, Password                 string
	SentinelUsername, SentinelPassword string

	// TLS, if set, is used for all connections, those to sentinels too.
	TLS *TLS

	// Prefix of all keys, without braces: those are hash tags. Default "notifyd:".
	Prefix string
	// Timeout bounds a dial, a read, a write and the wait for a connection,
	// each; one retry follows. Default 300 ms, at least 10 ms.
	Timeout time.Duration
	// PoolSize is how many connections a node gets at most. Default 32; every
	// queue that is waited at holds one more.
	PoolSize int
	// ReplicaAck is how long Push of the spill buffer waits for a replica's
	// confirmation where the server does not fsync always, below Timeout.
	// Default two thirds of that.
	ReplicaAck time.Duration

	// Logger gets what the client remarks. Default: discarded.
	Logger *slog.Logger

	// clock replaces the server's in scripts; for tests, whose time jumps.
	clock func() time.Time
}

// TLS names the files of a verified connection; there is no other kind.
type TLS struct {
	// CA is a PEM file of the authorities to trust; empty: the system's.
	CA string
	// Cert and Key are PEM files of the client's certificate, read again with
	// each handshake so that they can be renewed; both empty: none.
	Cert, Key string
	// ServerName is the name the server's certificate must have; empty: the
	// host that is dialed.
	ServerName string
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, "notifyd:")
	c.Timeout = cmp.Or(c.Timeout, 300*time.Millisecond)
	c.PoolSize = cmp.Or(c.PoolSize, 32)
	c.ReplicaAck = cmp.Or(c.ReplicaAck, c.Timeout*2/3)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c *Config) validate() error {
	bad := func(field, msg string) error { return notify.Invalid("bad_redis_config", "redis."+field, msg) }
	for _, a := range c.Addrs {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			return bad("addrs", "an address is host:port, not "+fmt.Sprintf("%q", a))
		}
	}
	switch {
	case len(c.Addrs) == 0:
		return bad("addrs", "needs at least one host:port")
	case c.Master != "" && c.Cluster:
		return bad("master", "a cluster has no sentinels: set master or cluster")
	case c.Master == "" && !c.Cluster && len(c.Addrs) > 1:
		return bad("addrs", "several addresses need master (they are sentinels) or cluster (they are its nodes)")
	case c.Cluster && c.DB != 0:
		return bad("db", "a cluster has database 0 only")
	case c.DB < 0:
		return bad("db", "must not be negative")
	case strings.ContainsAny(c.Prefix, "{} \n\r"):
		return bad("prefix", "must not contain braces, spaces or line breaks")
	case c.Timeout < 10*time.Millisecond:
		return bad("timeout", "must be at least 10ms")
	case c.PoolSize < 1:
		return bad("pool_size", "must be at least 1")
	case c.ReplicaAck < time.Millisecond || c.ReplicaAck >= c.Timeout:
		return bad("replica_ack", "must be at least 1ms and less than timeout")
	case c.Username != "" && c.Password == "":
		return bad("password", "a username needs one")
	case c.TLS != nil && (c.TLS.Cert == "") != (c.TLS.Key == ""):
		return bad("tls.cert", "a client certificate needs both cert and key")
	}
	return nil
}

// load reads the files; the error names the one that is wrong.
func (t *TLS) load() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	bad := func(field string, err error) error {
		return &notify.Error{Kind: notify.KindInvalid, Code: "bad_redis_config", Field: "redis.tls." + field, Msg: "cannot be used", Err: err}
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, bad("ca", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, bad("ca", fmt.Errorf("no certificate in %s", t.CA))
		}
	}
	if t.Cert != "" {
		read := func() (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(t.Cert, t.Key)
			return &c, err
		}
		if _, err := read(); err != nil {
			return nil, bad("cert", err)
		}
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	return out, nil
}
