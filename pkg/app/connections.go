package app

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/engine/postgres"
	"github.com/notifyd/notifyd/pkg/engine/redis"
	"github.com/notifyd/notifyd/pkg/engine/sqs"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// cassandra returns the configuration of a Cassandra cluster. Its values come from the section
// "cassandra" of the configuration. If the parameter part has its own hosts or its own keyspace,
// these are used instead.
func (c *Config) cassandra(part cassandra.Cluster, logger *slog.Logger) (cassandra.Config, error) {
	out := c.Cassandra
	out.StatusTTL, out.Logger = c.History.Retention, logger
	if len(part.Hosts) > 0 {
		out.Hosts = part.Hosts
	}
	if part.Keyspace != "" {
		out.Keyspace = part.Keyspace
	}
	var err error
	out.Password, err = secrets.FromConfig("cassandra.password_file", out.Password, out.PasswordFile)
	return out, err
}

func (c *Config) redis(logger *slog.Logger) (out redis.Config, err error) {
	out = c.Redis
	out.Logger = logger
	if out.Password, err = secrets.FromConfig("redis.password_file", out.Password, out.PasswordFile); err != nil {
		return out, err
	}
	out.SentinelPassword, err = secrets.FromConfig("redis.sentinel_password_file", "", out.SentinelFile)
	return out, err
}

func (c *Config) postgres() (postgres.Config, error) {
	out := c.Postgres
	// Only check these two files here, because the store of PostgreSQL reads them itself. It reads
	// the password file before each connection.
	if err := errors.Join(checkSecret("postgres.password_file", out.PasswordFile), checkSecret("postgres.key_file", out.KeyFile)); err != nil {
		return out, err
	}
	dsn, err := secrets.FromConfig("postgres.dsn_file", out.DSN, out.DSNFile)
	out.DSN = strings.TrimSpace(dsn)
	return out, err
}

func (c *Config) openSQS(ctx context.Context) (*sqs.Store, error) {
	if err := checkSecret("sqs.credentials_file", c.SQS.CredentialsFile); err != nil {
		return nil, err
	}
	return sqs.Open(ctx, c.SQS)
}

// egress returns the policy that decides to which addresses and ports callbacks may connect.
func (c *Config) egress() (p trigger.EgressPolicy, err error) {
	prefixes := func(field string, list []string) (out []netip.Prefix) {
		for _, s := range list {
			one, perr := netip.ParsePrefix(strings.TrimSpace(s))
			if perr != nil && err == nil {
				err = notify.Invalid("bad_config", field, strconv.Quote(s)+" is not an address prefix such as 10.1.0.0/16")
			}
			out = append(out, one)
		}
		return out
	}
	p.Plain = trigger.Plain(c.Triggers.Plain)
	p.Allow, p.Deny = prefixes("triggers.allow", c.Triggers.Allow), prefixes("triggers.deny", c.Triggers.Deny)
	for _, port := range c.Triggers.Ports {
		if port == 0 {
			p.AnyPort = true
			continue
		}
		if port < 0 || port > 65535 {
			return p, notify.Invalid("bad_config", "triggers.ports", strconv.Itoa(port)+" is not a port; use 1 to 65535, or 0 for all ports")
		}
		p.Ports = append(p.Ports, uint16(port))
	}
	return p, err
}
