package cassandra

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/setting"
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
	// Replication is how many replicas a keyspace that Migrate makes has.
	Replication int `default:"1" min:"1" max:"16"`
	// Username and Password are those of a role; empty: without.
	Username, Password string
	// TLS of connections to the nodes.
	TLS secrets.TLS
	// Consistency of reads and writes: "LOCAL_QUORUM" (default) or "QUORUM".
	// Compare and swap goes with it: LOCAL_SERIAL or SERIAL. Everything that uses
	// a keyspace must agree.
	Consistency string `default:"LOCAL_QUORUM" oneof:"LOCAL_QUORUM QUORUM"`
	// Timeout bounds one request to a node.
	Timeout time.Duration `default:"2s" min:"10ms" max:"1m"`
	// ConnectTimeout bounds a connection's setup.
	ConnectTimeout time.Duration `min:"10ms" max:"1m"`
	// NumConns is how many connections there are to each node.
	NumConns int `default:"4" min:"1" max:"64"`
	// StatusTTL is how long outcome rows and history are kept after their last write.
	StatusTTL time.Duration `default:"840h" min:"1h" max:"175200h"`
	// TimerGrace is how long rows of timers are kept behind their fire time, which bounds how
	// long releases may stand still.
	TimerGrace time.Duration `default:"720h" min:"1h" max:"87600h"`
	// EveryReceiver keeps a row by user for each receiver of a fan-out too, not for
	// single sends alone.
	EveryReceiver bool
	// Logger receives what happens in the background.
	Logger *slog.Logger `default:"discard"`

	// dialer is a test's way to cut connections.
	dialer gocql.Dialer
}

func (c Config) withDefaults() Config {
	c = setting.Fill(c)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, c.Timeout)
	return c
}

func (c Config) validate() error {
	switch {
	case len(c.Hosts) == 0:
		return notify.Invalid("bad_config", "cassandra.hosts", "the address of a node is needed")
	case !isName(c.Keyspace):
		return notify.Invalid("bad_config", "cassandra.keyspace", "a keyspace has 1 to 48 letters, digits and underscores, a letter first")
	}
	return setting.Err("cassandra", &c)
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
