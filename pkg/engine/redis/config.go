package redis

import (
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/secrets"
)

// Config says where Redis is and how to speak to it. The tagged fields are the section
// redis of the configuration file; the others are set by the program only.
type Config struct {
	Addresses        []string    `koanf:"addresses" is:"host:port" doc:"host:port of the server, of the sentinels, or of some nodes of the cluster"`
	Mode             string      `koanf:"mode" default:"single" oneof:"single sentinel cluster" doc:"single, sentinel or cluster"`
	Master           string      `koanf:"master" doc:"name of the master that the sentinels watch"`
	Username         string      `koanf:"username" doc:"name to authenticate with; empty: the default user"`
	PasswordFile     string      `koanf:"password_file" doc:"file with its password"`
	Password         string      `koanf:"password" secret:"yes" doc:"the password itself, from the environment only: NOTIFYD__REDIS__PASSWORD"`
	SentinelUsername string      `koanf:"sentinel_username" doc:"name to authenticate with at the sentinels; empty: the default user"`
	SentinelFile     string      `koanf:"sentinel_password_file" doc:"file with its password; empty: the sentinels ask for none"`
	DB               int         `koanf:"db" min:"0" doc:"number of the database; not in a cluster"`
	TLS              secrets.TLS `koanf:"tls"`
	Prefix           string      `koanf:"prefix" default:"notifyd:" is:"prefix" doc:"before the name of every key"`

	SeenRate   float64       `koanf:"seen_rate" default:"5000" above:"0" doc:"claims a second, over all processes, that the filter of what was claimed is made for; it takes 2.5 bytes of memory for each of seen_window"`
	SeenWindow time.Duration `koanf:"seen_window" default:"15m" min:"1s" doc:"how long it remembers them: what is older is read"`

	// SentinelPassword is what SentinelFile holds.
	SentinelPassword string
	// Timeout bounds a dial, a read, a write and the wait for a connection, each; one retry
	// follows.
	Timeout time.Duration `default:"300ms" min:"10ms"`
	// PoolSize is how many connections a node gets at most.
	PoolSize int `default:"32" min:"1"`
	// Logger gets what the client remarks.
	Logger *slog.Logger `default:"discard"`

	// clock replaces the server's in scripts; for tests, whose time jumps.
	clock func() time.Time
}
