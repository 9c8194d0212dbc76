package redis

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

type heartbeats struct{ s *Store }

// groupState is the Lua code with which beatScript and aliveScript begin. KEYS[1] is a hash of
// the members: owner -> beat:expiry:value. The part "beat" is the time of the last beat, and
// "expiry" is the time at which the member expires, both in µs since 1970. An earlier release
// writes members without a value.
//
// The field "" of the hash contains the group's version, the counted number of members, and
// the earliest time at which a member may expire. An earlier release treats this field as a
// member without a recent beat. Because of this field, a beat normally reads only one
// member. It reads all members only
//   - when the earliest time of expiry has come. This happens about once per ttl, even if
//     the group has many members;
//   - when the number of members differs from the counted number. Either a member has left,
//     or a process of an earlier release has joined. Such a process does not update the
//     counted number.
const groupState = `
local before = redis.call('HGET', KEYS[1], '') or ''
local version, counted, expires = string.match(before, '^0:%d+:(%d+):(%d+):(%d+)$')
version, counted, expires = tonumber(version or 0), tonumber(counted or 0), tonumber(expires or 0)
local function updateGroup(changed)
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
  -- The clock makes the version greater than any version before Redis was emptied.
  if changed or version == 0 then version = math.max(version + 1, now) end
  local after = string.format('0:9000000000000000:%.0f:%.0f:%.0f', version, counted, expires)
  if after ~= before then redis.call('HSET', KEYS[1], '', after) end
end
local function keepKeyFor(ms)
  if redis.call('PTTL', KEYS[1]) < ms then redis.call('PEXPIRE', KEYS[1], ms) end
end
`

var (
	// The key expires no earlier than its last member.
	beatScript = newScript(groupState + `
local was, to = redis.call('HGET', KEYS[1], ARGV[2]), now + ARGV[4]
redis.call('HSET', KEYS[1], ARGV[2], string.format('%.0f:%.0f:', now, to) .. ARGV[3])
if not was then counted = counted + 1 end
expires = math.min(expires, to)
updateGroup(not was or string.match(was, '^%d+:%d+:?(.*)$') ~= ARGV[3])
keepKeyFor(math.ceil(ARGV[4] / 1000))
return version`)
	aliveScript = newScript(groupState + `
updateGroup(false)
keepKeyFor(1000) -- so that a group without members keeps its version for a while
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
	leaveScript = newScript(`return redis.call('HDEL', KEYS[1], ARGV[2])`)
)

func (h heartbeats) keys(group string) []string { return []string{h.s.key("beats:" + group)} }

// Beat makes the given owner a member of the group until the duration ttl has passed, and stores
// the given value with the membership. It returns the version of the group.
func (h heartbeats) Beat(ctx context.Context, group, owner, value string, ttl time.Duration) (int64, error) {
	v, err := h.s.run(ctx, beatScript, h.keys(group), owner, value, micros(ttl))
	return asInt(v), err
}

// Alive returns the members of the group, ordered by owner, and the version of the group. If the
// version is still knownVersion, Alive returns no members, because the caller already knows them.
func (h heartbeats) Alive(ctx context.Context, group string, knownVersion int64) (out []engine.Heartbeat, version int64, err error) {
	v, err := h.s.run(ctx, aliveScript, h.keys(group), knownVersion)
	if err != nil {
		return nil, 0, err
	}
	l := asList(v)
	version = asInt(element(l, 0))
	for l = l[min(1, len(l)):]; len(l) >= 3; l = l[3:] {
		// After the server's clock was set back, the age could be negative.
		age := time.Duration(max(asInt(l[2]), 0)) * time.Microsecond
		out = append(out, engine.Heartbeat{Owner: asString(l[0]), Value: asString(l[1]), Age: age})
	}
	slices.SortFunc(out, func(a, b engine.Heartbeat) int { return cmp.Compare(a.Owner, b.Owner) })
	return out, version, nil
}

// Leave removes an owner from the group at once. Without Leave, the owner stays a member until
// its ttl is over.
func (h heartbeats) Leave(ctx context.Context, group, owner string) error {
	_, err := h.s.run(ctx, leaveScript, h.keys(group), owner)
	return err
}
