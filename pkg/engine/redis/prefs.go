package redis

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// How long a cached profile is believed, and kept for when the store is away.
const (
	profileFresh = time.Second
	profileKept  = time.Hour
)

// CachedPrefs is next with a cache of single profiles in front, for processes
// that read some users and hold no snapshot of all: an API without workers.
// Workers read their snapshot, which follows the change table.
//
// A profile written through any CachedPrefs over the same Redis is read by all of
// them at once: an older version never replaces a newer one. What is written
// around it, or while Redis is away, is seen within a second. While the store is
// away Get answers with what it last knew, up to an hour old; everything else
// passes through, and while Redis is away so does Get.
func (s *Store) CachedPrefs(next engine.Prefs) engine.Prefs { return &cachedPrefs{next, s} }

type cachedPrefs struct {
	engine.Prefs
	s *Store
}

var (
	// KEYS profile; ARGV version, JSON (empty: there is none), ms to keep.
	profileStore = script(`
local have = tonumber(redis.call('HGET', KEYS[1], 'v'))
if have and have > tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'v', ARGV[2], 'p', ARGV[3], 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1`)
	// KEYS profile. Returns its JSON and its age in µs.
	profileLoad = script(`
local have = redis.call('HMGET', KEYS[1], 'p', 'at')
if not have[1] then return {} end
return {have[1], string.format('%.0f', now - have[2])}`)
)

func (c *cachedPrefs) key(user string) string { return c.s.key("profile:" + user) }

// Get returns the profile of a user; ok is false when there is none.
func (c *cachedPrefs) Get(ctx context.Context, user string) (p engine.Profile, ok bool, err error) {
	var l []any
	if v, err := c.s.run(ctx, profileLoad, []string{c.key(user)}); err == nil {
		l = asList(v)
	}
	age := time.Duration(asInt(at(l, 1))) * time.Microsecond
	known := len(l) == 2
	if known && age >= 0 && age < profileFresh {
		if p, ok, err := readProfile(asString(l[0])); err == nil {
			return p, ok, nil
		}
	}
	p, ok, err = c.Prefs.Get(ctx, user)
	if known && notify.KindOf(err) == notify.KindUnavailable && ctx.Err() == nil {
		if p, ok, bad := readProfile(asString(l[0])); bad == nil {
			return p, ok, nil
		}
	}
	if err == nil {
		c.keep(ctx, user, p, ok)
	}
	return p, ok, err
}

// readProfile reads an entry; empty: there is no such profile.
func readProfile(s string) (p engine.Profile, ok bool, err error) {
	if s == "" {
		return p, false, nil
	}
	err = json.Unmarshal([]byte(s), &p)
	return p, err == nil, err
}

// keep caches a profile that was read or written. What fails costs a read later.
func (c *cachedPrefs) keep(ctx context.Context, user string, p engine.Profile, ok bool) {
	var b []byte
	if ok {
		var err error
		if b, err = json.Marshal(p); err != nil {
			return
		}
	}
	args := []any{strconv.FormatUint(p.Version, 10), b, profileKept.Milliseconds()}
	if _, err := c.s.run(context.WithoutCancel(ctx), profileStore, []string{c.key(user)}, args...); err != nil {
		c.s.cfg.Logger.Debug("a profile was not cached", slog.Any("error", err))
	}
}

// Put stores a profile and returns its version.
func (c *cachedPrefs) Put(ctx context.Context, p engine.Profile) (uint64, error) {
	version, err := c.Prefs.Put(ctx, p)
	if err != nil {
		// Somebody else's version is the newest, or ours may have been stored.
		c.forget(ctx, []engine.Profile{p})
		return 0, err
	}
	p.Version = version
	c.keep(ctx, p.User, p, true)
	return version, nil
}

// PutMany stores profiles unconditionally.
func (c *cachedPrefs) PutMany(ctx context.Context, ps []engine.Profile) error {
	err := c.Prefs.PutMany(ctx, ps)
	c.forget(ctx, ps)
	return err
}

func (c *cachedPrefs) forget(ctx context.Context, ps []engine.Profile) {
	const most = 1000
	for ; len(ps) > 0; ps = ps[min(len(ps), most):] {
		_, err := c.s.c.Pipelined(context.WithoutCancel(ctx), func(pipe client.Pipeliner) error {
			for i := range ps[:min(len(ps), most)] {
				pipe.Unlink(ctx, c.key(ps[i].User))
			}
			return nil
		})
		if err != nil {
			c.s.cfg.Logger.Debug("cached profiles were not forgotten", slog.Any("error", translate(err)))
			return // each is believed for a second at most
		}
	}
}
