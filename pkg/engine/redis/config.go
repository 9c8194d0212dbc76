package redis

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/setting"
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
	DB int `min:"0"`

	// Username and Password of the server; both empty: it asks for none. The
	// sentinels' own may differ. None of them is ever logged.
	Username, Password                 string
	SentinelUsername, SentinelPassword string

	// TLS is used for all connections, those to sentinels too.
	TLS secrets.TLS

	// Prefix of all keys, without braces: those are hash tags.
	Prefix string `default:"notifyd:"`
	// Timeout bounds a dial, a read, a write and the wait for a connection, each; one retry
	// follows.
	Timeout time.Duration `default:"300ms" min:"10ms"`
	// PoolSize is how many connections a node gets at most.
	PoolSize int `default:"32" min:"1"`
	// ReplicaAck is how long Push of the spill buffer waits for a replica's confirmation where
	// the server does not fsync always, below Timeout.
	ReplicaAck time.Duration `min:"1ms"`

	// Logger gets what the client remarks.
	Logger *slog.Logger `default:"discard"`

	// clock replaces the server's in scripts; for tests, whose time jumps.
	clock func() time.Time
}

func (c Config) withDefaults() Config {
	c = setting.Fill(c)
	c.ReplicaAck = cmp.Or(c.ReplicaAck, c.Timeout*2/3)
	return c
}

func (c *Config) validate() error {
	bad := func(field, msg string) error { return notify.Invalid("bad_redis_config", "redis."+field, msg) }
	switch {
	case len(c.Addrs) == 0:
		return bad("addrs", "needs at least one host:port")
	case c.Master != "" && c.Cluster:
		return bad("master", "a cluster has no sentinels: set master or cluster")
	case c.ReplicaAck >= c.Timeout:
		return bad("replica_ack", "must be less than timeout")
	case c.Username != "" && c.Password == "":
		return bad("password", "a username needs one")
	}
	return setting.Err("redis", c)
}
