package redis

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

type heartbeats struct{ s *Store }

var (
	// The key lives as long as its longest member.
	beat = script(`
redis.call('HSET', KEYS[1], ARGV[2], string.format('%.0f:%.0f', now, now + ARGV[3]))
local ms = math.ceil(ARGV[3] / 1000)
if redis.call('PTTL', KEYS[1]) < ms then redis.call('PEXPIRE', KEYS[1], ms) end
return 1`)
	alive = script(`
local all, out = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local from, to = string.match(all[i + 1], '(%d+):(%d+)')
  if tonumber(to) <= now then redis.call('HDEL', KEYS[1], all[i])
  else
    out[#out + 1] = all[i]
    out[#out + 1] = now - from
  end
end
return out`)
	leave = script(`return redis.call('HDEL', KEYS[1], ARGV[2])`)
)

func (h heartbeats) keys(group string) []string { return []string{h.s.key("beats:" + group)} }

// Beat says that owner is alive; it is a member of group for ttl from now.
func (h heartbeats) Beat(ctx context.Context, group, owner string, ttl time.Duration) error {
	_, err := h.s.run(ctx, beat, h.keys(group), owner, micros(ttl))
	return err
}

// Alive returns the members of group, ordered by owner.
func (h heartbeats) Alive(ctx context.Context, group string) (out []engine.Heartbeat, err error) {
	v, err := h.s.run(ctx, alive, h.keys(group))
	if err != nil {
		return nil, err
	}
	for l := asList(v); len(l) >= 2; l = l[2:] {
		// A clock that was set back gives no negative age.
		age := time.Duration(max(asInt(l[1]), 0)) * time.Microsecond
		out = append(out, engine.Heartbeat{Owner: asString(l[0]), Age: age})
	}
	slices.SortFunc(out, func(a, b engine.Heartbeat) int { return cmp.Compare(a.Owner, b.Owner) })
	return out, nil
}

// Leave ends owner's membership before its ttl is over.
func (h heartbeats) Leave(ctx context.Context, group, owner string) error {
	_, err := h.s.run(ctx, leave, h.keys(group), owner)
	return err
}
