package redis

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

type heartbeats struct{ s *Store }

// groupState is Lua that both scripts share. KEYS[1] is a hash of the members, owner ->
// from:to:value, whose times are in µs since 1970; a release before this one writes them
// without a value. Its field "" holds the group's version, how many members it counts, and
// the moment before which no member's time is over. To a release before this one that field
// is a member without a recent beat. So a beat reads one member, and all of them only when
// that moment has come (about once per ttl of the group, whatever the number of members) or
// when their number is not the one that was counted: a member has left, or one has joined
// that does not count, of an earlier release.
const groupState = `
local before = redis.call('HGET', KEYS[1], '') or ''
local version, counted, expires = string.match(before, '^0:%d+:(%d+):(%d+):(%d+)$')
version, counted, expires = tonumber(version or 0), tonumber(counted or 0), tonumber(expires or 0)
local function settle(changed)
  local n = redis.call('HLEN', KEYS[1])
  if before ~= '' then n = n - 1 end
  if n ~= counted or now >= expires then
    changed = changed or n ~= counted
    expires = now + 3600000000
    local all = redis.call('HGETALL', KEYS[1])
    for i = 1, #all, 2 do
      local to = tonumber(string.match(all[i + 1], '%d+:(%d+)'))
      if to <= now then
        redis.call('HDEL', KEYS[1], all[i])
        changed = true
        n = n - 1
      elseif all[i] ~= '' then
        expires = math.min(expires, to)
      end
    end
    counted = n
  end
  -- The clock makes a version that no earlier state of an emptied Redis had.
  if changed or version == 0 then version = math.max(version + 1, now) end
  local after = string.format('0:9000000000000000:%.0f:%.0f:%.0f', version, counted, expires)
  if after ~= before then redis.call('HSET', KEYS[1], '', after) end
end
local function keep(ms)
  if redis.call('PTTL', KEYS[1]) < ms then redis.call('PEXPIRE', KEYS[1], ms) end
end
`

var (
	// The key lives as long as the longest member.
	beat = script(groupState + `
local was, to = redis.call('HGET', KEYS[1], ARGV[2]), now + ARGV[4]
redis.call('HSET', KEYS[1], ARGV[2], string.format('%.0f:%.0f:', now, to) .. ARGV[3])
if not was then counted = counted + 1 end
expires = math.min(expires, to)
settle(not was or string.match(was, '^%d+:%d+:?(.*)$') ~= ARGV[3])
keep(math.ceil(ARGV[4] / 1000))
return version`)
	alive = script(groupState + `
settle(false)
keep(1000) -- the version of a group that has no members yet
local out = {version}
if version == tonumber(ARGV[2]) then return out end
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if all[i] ~= '' then
    local from, value = string.match(all[i + 1], '^(%d+):%d+:?(.*)$')
    out[#out + 1] = all[i]
    out[#out + 1] = value
    out[#out + 1] = now - from
  end
end
return out`)
	leave = script(`return redis.call('HDEL', KEYS[1], ARGV[2])`)
)

func (h heartbeats) keys(group string) []string { return []string{h.s.key("beats:" + group)} }

// Beat says that owner is alive; it is a member of group for ttl from now, with a value.
// It returns the version of the group.
func (h heartbeats) Beat(ctx context.Context, group, owner, value string, ttl time.Duration) (int64, error) {
	v, err := h.s.run(ctx, beat, h.keys(group), owner, value, micros(ttl))
	return asInt(v), err
}

// Alive returns the members of group, ordered by owner, and its version. While known is
// still the version, it returns no members.
func (h heartbeats) Alive(ctx context.Context, group string, known int64) (out []engine.Heartbeat, version int64, err error) {
	v, err := h.s.run(ctx, alive, h.keys(group), known)
	if err != nil {
		return nil, 0, err
	}
	l := asList(v)
	version = asInt(at(l, 0))
	for l = l[min(1, len(l)):]; len(l) >= 3; l = l[3:] {
		// A clock that was set back gives no negative age.
		age := time.Duration(max(asInt(l[2]), 0)) * time.Microsecond
		out = append(out, engine.Heartbeat{Owner: asString(l[0]), Value: asString(l[1]), Age: age})
	}
	slices.SortFunc(out, func(a, b engine.Heartbeat) int { return cmp.Compare(a.Owner, b.Owner) })
	return out, version, nil
}

// Leave ends owner's membership before its ttl is over.
func (h heartbeats) Leave(ctx context.Context, group, owner string) error {
	_, err := h.s.run(ctx, leave, h.keys(group), owner)
	return err
}
