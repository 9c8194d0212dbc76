package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Durability is what stands behind an answer of Redis.
type Durability struct {
	AOF      bool // appendonly yes
	Fsync    bool // appendfsync always, also while the file is rewritten: an answer means on disk
	Replicas int  // connected
	// Unknown is set where the server does not let us ask for its settings: then
	// only replicas count.
	Unknown bool
}

// Always reports whether an answer alone means durable.
func (d Durability) Always() bool { return d.AOF && d.Fsync }

// Durable reports whether the spill buffer may answer: Redis fsyncs always, or
// there is a replica that can confirm. The first is a setting that may change,
// the second a moment's picture, so Push asks both again each time.
func (s *Store) Durable(ctx context.Context) (bool, error) {
	d, err := s.Durability(ctx)
	return d.Always() || d.Replicas > 0, err
}

// Durability asks the node that keeps the spill buffer.
func (s *Store) Durability(ctx context.Context) (Durability, error) {
	node, err := s.node(ctx, s.key(spillTag))
	if err != nil {
		return Durability{}, err
	}
	return durability(ctx, node)
}

func durability(ctx context.Context, node *client.Client) (d Durability, err error) {
	if ctx.Err() != nil {
		return d, translate(context.Cause(ctx))
	}
	info, err := node.Info(ctx, "replication").Result()
	if err != nil {
		return d, translate(err)
	}
	d.Replicas, _ = strconv.Atoi(infoField(info, "connected_slaves"))
	settings, err := node.ConfigGet(ctx, "*append*").Result()
	if err != nil {
		if _, ok := errors.AsType[client.Error](err); ok {
			d.Unknown = true // hosted servers refuse the command
			return d, nil
		}
		return d, translate(err)
	}
	d.set(settings)
	return d, nil
}

func (d *Durability) set(settings map[string]string) {
	d.AOF = settings["appendonly"] == "yes"
	d.Fsync = settings["appendfsync"] == "always" && settings["no-appendfsync-on-rewrite"] == "no"
}

// infoField returns the value of a line of INFO; empty: there is none.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && k == name {
			return v
		}
	}
	return ""
}

// node returns a client of the node that holds a key. What one connection of it
// is asked in a row is answered by the same server.
func (s *Store) node(ctx context.Context, key string) (*client.Client, error) {
	switch c := s.c.(type) {
	case *client.Client:
		return c, nil
	case *client.ClusterClient:
		node, err := c.MasterForKey(ctx, key)
		return node, translate(err)
	}
	return nil, notify.Unavailable("redis", 0, nil)
}
