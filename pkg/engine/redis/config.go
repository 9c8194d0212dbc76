package redis

import (
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/secrets"
)

// Config is the configuration of a Store. The fields with a koanf tag are settings in the
// section redis of the configuration file. The other fields are set only by the program.
type Config struct {
	Addresses        []string    `koanf:"addresses" is:"host:port" doc:"host:port of the server, of the sentinels, or of some nodes of the cluster"`
	Mode             string      `koanf:"mode" default:"single" oneof:"single sentinel cluster" doc:"single, sentinel or cluster"`
	Master           string      `koanf:"master" doc:"name of the master that the sentinels watch"`
	Username         string      `koanf:"username" doc:"name to authenticate with; empty: the default user"`
	PasswordFile     string      `koanf:"password_file" doc:"file with the password"`
	Password         string      `koanf:"password" secret:"yes" doc:"the password itself, from the environment only: NOTIFYD__REDIS__PASSWORD"`
	SentinelUsername string      `koanf:"sentinel_username" doc:"name to authenticate with at the sentinels; empty: the default user"`
	SentinelFile     string      `koanf:"sentinel_password_file" doc:"file with the password for the sentinels; empty: they need none"`
	DB               int         `koanf:"db" min:"0" doc:"number of the database; in mode cluster only 0"`
	TLS              secrets.TLS `koanf:"tls"`
	Prefix           string      `koanf:"prefix" default:"notifyd:" is:"prefix" doc:"prefix of every key"`

	SeenRate   float64       `koanf:"seen_rate" default:"5000" above:"0" doc:"number of claims a second, of all processes together, for which the seen-filter has room; with more, workers read more rows from the store. Redis needs 2.5 bytes of memory for each claim within seen_window. All processes must have the same value"`
	SeenWindow time.Duration `koanf:"seen_window" default:"15m" min:"1s" doc:"how long the seen-filter remembers a claim; for older claims workers read the rows from the store. All processes must have the same value"`

	// SentinelPassword is the content of SentinelFile.
	SentinelPassword string
	// Timeout is the longest time of each dial, each read, each write, and each wait for a
	// connection of the pool. The client retries a failed command once.
	Timeout time.Duration `default:"300ms" min:"10ms"`
	// PoolSize is the greatest number of connections to one node.
	PoolSize int `default:"32" min:"1"`
	// Logger receives the log messages of the client.
	Logger *slog.Logger `default:"discard"`

	// clock replaces the server's clock in scripts. Only tests set clock, because in tests
	// the time jumps.
	clock func() time.Time
}
