package cassandra

import (
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Config says where a cluster is and how it is asked. The tagged fields are the section
// cassandra of the configuration file; the others are set by the program only.
type Config struct {
	Hosts         []string      `koanf:"hosts" is:"host:port" doc:"host:port of some nodes"`
	Keyspace      string        `koanf:"keyspace" default:"notifyd" is:"keyspace" doc:"keyspace that migrate creates"`
	LocalDC       string        `koanf:"datacenter" doc:"local data center; empty: that of the cluster, which must have one then"`
	Replication   int           `koanf:"replication" default:"3" min:"1" max:"16" doc:"copies of each row in the keyspace that migrate creates"`
	Timeout       time.Duration `koanf:"timeout" default:"2s" min:"10ms" max:"1m" doc:"longest one request to a node may take"`
	Consistency   string        `koanf:"consistency" default:"LOCAL_QUORUM" oneof:"LOCAL_QUORUM QUORUM" doc:"LOCAL_QUORUM or QUORUM; every process over a keyspace has the same"`
	EveryReceiver bool          `koanf:"every_receiver" doc:"keep a row by user for each receiver of a fan-out too; without it a user's history leaves fan-outs out, and says so"`
	Username      string        `koanf:"username" doc:"name to authenticate with; empty: none"`
	PasswordFile  string        `koanf:"password_file" doc:"file with its password"`
	Password      string        `koanf:"password" secret:"yes" doc:"the password itself, from the environment only: NOTIFYD__CASSANDRA__PASSWORD"`
	TLS           secrets.TLS   `koanf:"tls"`
	Status        Cluster       `koanf:"status"`
	Timers        Cluster       `koanf:"timers"`
	Triggers      Cluster       `koanf:"triggers"`

	// NumConns is how many connections there are to each node.
	NumConns int `default:"4" min:"1" max:"64"`
	// StatusTTL is how long outcome rows and history are kept after their last write.
	StatusTTL time.Duration `default:"840h" min:"1h" max:"175200h"`
	// TimerGrace is how long rows of timers are kept behind their fire time, which bounds how
	// long releases may stand still.
	TimerGrace time.Duration `default:"720h" min:"1h" max:"87600h"`
	// Logger receives what happens in the background.
	Logger *slog.Logger `default:"discard"`

	// connectTimeout bounds a connection's setup, where Timeout is for longer calls; 0: Timeout.
	connectTimeout time.Duration
	// dialer is a test's way to cut connections.
	dialer gocql.Dialer
}

// Cluster keeps a part of the tables apart from the others.
type Cluster struct {
	Hosts    []string `koanf:"hosts" is:"host:port" doc:"nodes of a cluster of their own for these tables; empty: cassandra.hosts"`
	Keyspace string   `koanf:"keyspace" is:"keyspace" empty:"yes" doc:"keyspace there; empty: cassandra.keyspace"`
}

// KeyspaceName matches the keyspaces that may stand in a statement as they are:
// keyspaces cannot be bound.
var KeyspaceName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,47}$`)

// filled returns c with defaults, or what is wrong with it as a notify.KindInvalid.
func (c Config) filled() (Config, error) {
	c = setting.Fill(c)
	if !KeyspaceName.MatchString(c.Keyspace) {
		return c, notify.Invalid("bad_config", "cassandra.keyspace", "a keyspace has 1 to 48 of a-z, 0-9 and _, a letter first")
	}
	err := setting.Err("cassandra", &c)
	return c, err
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

// maxTTL is what a column may live at most, in Cassandra: 20 years.
const maxTTL = 20 * 365 * 24 * time.Hour
