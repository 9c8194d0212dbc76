package cassandra

import (
	"crypto/tls"
	"log/slog"
	"slices"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Config says where a cluster is and how it is asked. Status, timers and triggers
// may each have one of their own.
type Config struct {
	// Hosts are "host" or "host:port" of some nodes; the rest is found. Required.
	Hosts []string
	// Keyspace holds the tables: 1 to 48 letters, digits and underscores. Migrate
	// makes it. Required.
	Keyspace string
	// LocalDC is the data centre whose nodes are asked. Empty: that of the cluster,
	// which then has one.
	LocalDC string
	// Replication is how many replicas a keyspace that Migrate makes has; default 1.
	Replication int
	// Username and Password are those of a role; empty: without.
	Username, Password string
	// TLS encrypts connections to the nodes, and verifies them. nil: CA, Cert and
	// Key decide; without them connections are plain.
	TLS *tls.Config
	// CA, Cert and Key are PEM files: whom to trust, and who we are.
	CA, Cert, Key string
	// Consistency of reads and writes: "LOCAL_QUORUM" (default) or "QUORUM".
	// Compare and swap goes with it: LOCAL_SERIAL or SERIAL. Everything that uses
	// a keyspace must agree.
	Consistency string
	// Timeout bounds one request to a node. Default 2 s.
	Timeout time.Duration
	// ConnectTimeout bounds a connection's setup. Default: Timeout.
	ConnectTimeout time.Duration
	// NumConns is how many connections there are to each node. Default 4.
	NumConns int
	// StatusTTL is how long outcome rows and history are kept after their last
	// write. Default 35 days.
	StatusTTL time.Duration
	// TimerGrace is how long rows of timers are kept behind their fire time, which
	// bounds how long releases may stand still. Default 30 days.
	TimerGrace time.Duration
	// EveryReceiver keeps a row by user for each receiver of a fan-out too, not for
	// single sends alone.
	EveryReceiver bool
	// Logger receives what happens in the background. Default: none.
	Logger *slog.Logger

	// dialer is a test's way to cut connections.
	dialer gocql.Dialer
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Timeout, 2*time.Second)
	def(&c.ConnectTimeout, c.Timeout)
	def(&c.StatusTTL, 35*24*time.Hour)
	def(&c.TimerGrace, 30*24*time.Hour)
	if c.Replication == 0 {
		c.Replication = 1
	}
	if c.Consistency == "" {
		c.Consistency = "LOCAL_QUORUM"
	}
	c.Consistency = strings.ToUpper(c.Consistency)
	if c.NumConns == 0 {
		c.NumConns = 4
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	bad := func(field, msg string) error { return notify.Invalid("bad_config", field, msg) }
	switch {
	case len(c.Hosts) == 0:
		return bad("hosts", "the address of a node is needed")
	case !isName(c.Keyspace):
		return bad("keyspace", "a keyspace has 1 to 48 letters, digits and underscores, a letter first")
	case c.Replication < 1 || c.Replication > 16:
		return bad("replication", "there are 1 to 16 replicas")
	case c.Consistency != "LOCAL_QUORUM" && c.Consistency != "QUORUM":
		return bad("consistency", "either LOCAL_QUORUM or QUORUM")
	case c.Timeout < 10*time.Millisecond || c.Timeout > time.Minute:
		return bad("timeout", "a request has 10 ms to 1 min")
	case c.ConnectTimeout < 10*time.Millisecond || c.ConnectTimeout > time.Minute:
		return bad("connect_timeout", "a connection has 10 ms to 1 min")
	case c.NumConns < 1 || c.NumConns > 64:
		return bad("num_conns", "there are 1 to 64 connections to a node")
	case c.StatusTTL < time.Hour || c.StatusTTL > maxTTL:
		return bad("status_ttl", "outcome rows are kept 1 h to 20 years")
	case c.TimerGrace < time.Hour || c.TimerGrace > maxTTL/2:
		return bad("timer_grace", "timers are kept 1 h to 10 years behind their time")
	case (c.Cert == "") != (c.Key == ""):
		return bad("cert", "a certificate and its key go together")
	case c.TLS != nil && (c.CA != "" || c.Cert != ""):
		return bad("tls", "either a configuration of TLS or files")
	}
	for _, h := range c.Hosts {
		if strings.TrimSpace(h) == "" {
			return bad("hosts", "an address is empty")
		}
	}
	return nil
}

// learnDC fills LocalDC where the cluster has one data centre. Of several the near
// one must be named: nodes of all would be asked in turn, and quorums of each count
// different replicas.
func (c *Config) learnDC(dcs []string) error {
	slices.Sort(dcs)
	dcs = slices.Compact(dcs)
	switch {
	case c.LocalDC != "" || len(dcs) == 0:
		return nil
	case len(dcs) > 1:
		return notify.Invalid("bad_config", "datacenter", "the cluster has the data centres "+strings.Join(dcs, ", ")+": name the one that this process is in")
	}
	c.LocalDC = dcs[0]
	return nil
}

// isName reports whether a text may stand in a statement as it is: keyspaces
// cannot be bound.
func isName(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c != '_' && (c < '0' || c > '9')) {
			return false
		}
	}
	return s != "" && len(s) <= 48
}

// maxTTL is what a column may live at most, in Cassandra: 20 years.
const maxTTL = 20 * 365 * 24 * time.Hour
