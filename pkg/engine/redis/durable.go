package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Durability says what Redis does to keep an acknowledged write.
type Durability struct {
	AOF      bool // appendonly yes
	Fsync    bool // appendfsync always, even while Redis rewrites the append-only file
	Replicas int  // connected replicas
	// Unknown is true if the server refuses to show its settings. AOF and Fsync are then
	// false, so only Replicas says how safe a write is.
	Unknown bool
}

// Always reports whether every acknowledged write is on disk.
func (d Durability) Always() bool { return d.AOF && d.Fsync }

// Durable reports whether the spill buffer may accept records. It may if Redis fsyncs every
// write, or if a replica is connected that can confirm a write. Both conditions may change
// at any time, so each Push checks them again.
func (s *Store) Durable(ctx context.Context) (bool, error) {
	d, err := s.Durability(ctx)
	return d.Always() || d.Replicas > 0, err
}

// Durability returns the durability of the node on which the spill buffer is.
func (s *Store) Durability(ctx context.Context) (Durability, error) {
	node, err := s.nodeForKey(ctx, s.key(spillTag))
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
	d.readSettings(settings)
	return d, nil
}

func (d *Durability) readSettings(settings map[string]string) {
	d.AOF = settings["appendonly"] == "yes"
	d.Fsync = settings["appendfsync"] == "always" && settings["no-appendfsync-on-rewrite"] == "no"
}

// infoField returns the value of a field of the answer to INFO. It returns "" if the answer
// does not have the field.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && k == name {
			return v
		}
	}
	return ""
}

// nodeForKey returns a client of the node that stores a key. All commands of one pipeline of
// that client reach the same server.
func (s *Store) nodeForKey(ctx context.Context, key string) (*client.Client, error) {
	switch c := s.c.(type) {
	case *client.Client:
		return c, nil
	case *client.ClusterClient:
		node, err := c.MasterForKey(ctx, key)
		return node, translate(err)
	}
	return nil, notify.Unavailable("redis", 0, nil)
}
