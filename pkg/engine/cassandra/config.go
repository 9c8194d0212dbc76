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

// Config is the configuration of a Store. The fields with a koanf tag are settings in the
// section cassandra of the configuration file. The other fields are set only by the
// program.
type Config struct {
	Hosts         []string      `koanf:"hosts" is:"host:port" doc:"host:port of some nodes"`
	Keyspace      string        `koanf:"keyspace" default:"notifyd" is:"keyspace" doc:"keyspace that migrate creates"`
	LocalDC       string        `koanf:"datacenter" doc:"name of the nearest data centre; may be empty if the cluster has only one"`
	Replication   int           `koanf:"replication" default:"3" min:"1" max:"16" doc:"copies of each row in the keyspace that migrate creates"`
	Timeout       time.Duration `koanf:"timeout" default:"2s" min:"10ms" max:"1m" doc:"longest time that one request to a node may take"`
	Consistency   string        `koanf:"consistency" default:"LOCAL_QUORUM" oneof:"LOCAL_QUORUM QUORUM" doc:"LOCAL_QUORUM or QUORUM; all processes that use a keyspace must have the same"`
	EveryReceiver bool          `koanf:"every_receiver" doc:"true: store a row by user also for each receiver of a fan-out; false: the history of a user does not contain fan-outs, and says so"`
	Username      string        `koanf:"username" doc:"name to authenticate with; empty: none"`
	PasswordFile  string        `koanf:"password_file" doc:"file with the password"`
	Password      string        `koanf:"password" secret:"yes" doc:"the password itself, from the environment only: NOTIFYD__CASSANDRA__PASSWORD"`
	TLS           secrets.TLS   `koanf:"tls"`
	Status        Cluster       `koanf:"status"`
	Timers        Cluster       `koanf:"timers"`
	Triggers      Cluster       `koanf:"triggers"`

	// NumConns is the number of connections to each node.
	NumConns int `default:"4" min:"1" max:"64"`
	// StatusTTL is how long outcome rows and history are kept after their last write.
	StatusTTL time.Duration `default:"840h" min:"1h" max:"175200h"`
	// TimerGrace is how long rows of timers are kept after their fire time. A timer that is
	// not released within TimerGrace is lost.
	TimerGrace time.Duration `default:"720h" min:"1h" max:"87600h"`
	// Logger receives messages about background work.
	Logger *slog.Logger `default:"discard"`

	// connectTimeout is the longest time to set up a connection; 0: Timeout. Migrate sets
	// connectTimeout, because Migrate raises Timeout for its long calls.
	connectTimeout time.Duration
	// dialer replaces the default dialer in tests that cut connections.
	dialer gocql.Dialer
}

// Cluster configures another cluster or keyspace for some of the tables.
type Cluster struct {
	Hosts    []string `koanf:"hosts" is:"host:port" doc:"host:port of some nodes of a separate cluster for the tables of this section; empty: cassandra.hosts"`
	Keyspace string   `koanf:"keyspace" is:"keyspace" empty:"yes" doc:"keyspace of the tables of this section; empty: cassandra.keyspace"`
}

// KeyspaceName matches the names of keyspaces that may be put into a statement without
// quotes. The check is needed because a keyspace cannot be a bound argument of a statement.
var KeyspaceName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,47}$`)

// withDefaults returns a copy of c in which unset fields have their default values. It
// returns notify.KindInvalid if a field is wrong.
func (c Config) withDefaults() (Config, error) {
	c = setting.Fill(c)
	if !KeyspaceName.MatchString(c.Keyspace) {
		return c, notify.Invalid("bad_config", "cassandra.keyspace", "a keyspace must have 1 to 48 characters, only a-z, 0-9 and _, and must begin with a letter")
	}
	err := setting.Err("cassandra", &c)
	return c, err
}

// learnDC sets LocalDC if the cluster has only one data centre. If the cluster has several and
// LocalDC is not set, it returns an error. LocalDC is necessary there: without it, requests go to
// nodes of all data centres, and LOCAL_QUORUM uses other replicas in each data centre.
func (c *Config) learnDC(dcs []string) error {
	slices.Sort(dcs)
	dcs = slices.Compact(dcs)
	switch {
	case c.LocalDC != "" || len(dcs) == 0:
		return nil
	case len(dcs) > 1:
		return notify.Invalid("bad_config", "cassandra.datacenter", "the cluster has the data centres "+strings.Join(dcs, ", ")+": set cassandra.datacenter to the data centre of this process")
	}
	c.LocalDC = dcs[0]
	return nil
}

// maxTTL is the greatest TTL of a column in Cassandra: 20 years.
const maxTTL = 20 * 365 * 24 * time.Hour
