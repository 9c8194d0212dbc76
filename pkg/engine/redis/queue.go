package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/engine"
)

// A queue has these keys, all with one hash tag:
//
//	due:0, due:1   sorted sets, one for each lane: id of a waiting message, sorted by the
//	               time when the message becomes visible, µs
//	held           sorted set: id of a received message, sorted by the end of its visibility
//	last           sorted set: id of a message released after its last receive, sorted by the
//	               end of its delay; at that time the message becomes dead
//	dead           sorted set: id of a dead message, sorted by id
//	bodies, rows   hashes: id -> body; id -> receives:enqueued:lane
//	head           hash: last id, a count that decides from which lane the next message comes,
//	               number of messages in the backlog lane
//	wake           stream: gets an entry when a message becomes visible earlier than all other
//	               messages; receivers wait for an entry
//
// An id has 16 digits, so that sorting ids as text sorts them as numbers. If messages become
// visible at the same time, the oldest message is received first. Every script first moves the
// messages in "held" and "last" whose time is over. They become visible again, or dead after
// maxReceives receives.

// queue implements engine.Queue.
type queue struct {
	s           *Store
	name        string
	maxReceives int
	keys        []string
	wake        wake
}

// queueScript returns a script that uses all keys of a queue. ARGV[2] is maxReceives. A script
// that may make a message visible earlier returns the id of the entry that it added to the stream
// "wake", or an empty string if it added no entry. Where possible, a script runs one command for
// many messages. So a message takes 26 us of the server's CPU. With one command for each field of
// each message it took 43 us (BenchmarkQueue, on a busy machine).
func queueScript(lua string) *client.Script {
	return newScript(`
local lanes = {[0] = KEYS[1], [1] = KEYS[2]}
local held, last, dead, bodies, rows, head, stream = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local maxReceives = tonumber(ARGV[2])

local function readRow(id)
  local r, e, l = string.match(redis.call('HGET', rows, id) or '', '(%d+):(%d+):(%d+)')
  return tonumber(r), e, tonumber(l)
end
local function formatRow(r, e, l) return string.format('%d:%s:%d', r, e, l) end
-- runMany runs a command with a list of any length, because unpack is limited to some
-- thousands of values.
local function runMany(command, key, list)
  local out = {}
  for i = 1, #list, 1000 do
    local answer = redis.call(command, key, unpack(list, i, math.min(i + 999, #list)))
    if type(answer) == 'table' then
      for k = 1, #answer do out[i + k - 1] = answer[k] end
    end
  end
  return out
end
-- readRows returns the rows of ids, each {receives, enqueued, lane}, or false if there is
-- none.
local function readRows(ids)
  local out = runMany('HMGET', rows, ids)
  for k = 1, #ids do
    local r, e, l = string.match(out[k] or '', '(%d+):(%d+):(%d+)')
    out[k] = r and {tonumber(r), e, tonumber(l)} or false
  end
  return out
end
local function moveToDead(id, l)
  redis.call('ZADD', dead, id, id)
  if l == 1 then redis.call('HINCRBY', head, 'backlog', -1) end
end
-- moveDue moves the messages of set whose time has come: to their lane, or to dead.
local function moveDue(set)
  for _ = 1, 20 do
    local over = redis.call('ZRANGEBYSCORE', set, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 500)
    for i = 1, #over, 2 do
      local id = over[i]
      local r, _, l = readRow(id)
      redis.call('ZREM', set, id)
      if r and r >= maxReceives then moveToDead(id, l)
      elseif r then redis.call('ZADD', lanes[l], over[i + 1], id) end
    end
    if #over < 1000 then return end
  end
end
moveDue(held)
moveDue(last)

-- nextDue returns the earliest time in all sets; nil: they are empty.
local function nextDue()
  local min
  for _, set in ipairs({lanes[0], lanes[1], held, last}) do
    local f = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
    local at = tonumber(f[2])
    if at and (not min or at < min) then min = at end
  end
  return min
end
local function wakeAll() return redis.call('XADD', stream, 'MAXLEN', 1, '*', 'w', '1') end
-- heldRow returns the id and row of the message of a receipt that is still valid.
local function heldRow(receipt)
  local id, n = string.match(receipt, '^(%d+)-(%d+)$')
  if not id or not redis.call('ZSCORE', held, id) then return end
  local r, e, l = readRow(id)
  if r ~= tonumber(n) then return end
  return id, r, e, l
end
` + lua)
}

var (
	// Further ARGV: delay in µs, lane and body of each message.
	queueEnqueue = queueScript(`
local id = tonumber(redis.call('HGET', head, 'id')) or 0
local before, wake = nextDue(), ''
local soonest
local texts, states, due, since = {}, {}, {[0] = {}, [1] = {}}, string.format('%.0f', now)
for i = 3, #ARGV, 3 do
  id = math.max(id + 1, now)
  local name, at, l = string.format('%016.0f', id), now + ARGV[i], tonumber(ARGV[i + 1])
  local n, d = #texts, due[l]
  texts[n + 1], texts[n + 2] = name, ARGV[i + 2]
  states[n + 1], states[n + 2] = name, formatRow(0, since, l)
  n = #d
  d[n + 1], d[n + 2] = at, name
  if not soonest or at < soonest then soonest = at end
end
runMany('HSET', bodies, texts)
runMany('HSET', rows, states)
for l = 0, 1 do runMany('ZADD', lanes[l], due[l]) end
if #due[1] > 0 then redis.call('HINCRBY', head, 'backlog', #due[1] / 2) end
redis.call('HSET', head, 'id', string.format('%.0f', id))
if soonest and (not before or soonest < before) then wake = wakeAll() end
return wake`)
	// Further ARGV: max, visibility in µs, BacklogShare. Normally it returns the deliveries. If no
	// message is ready, it instead returns two values: the time until the next message
	// becomes due, in µs (-1 if no message waits), and the id of the last entry of the
	// stream.
	queueReceive = queueScript(`
local most, share = tonumber(ARGV[3]), tonumber(ARGV[5])
local due = {}
for l = 0, 1 do due[l] = redis.call('ZRANGEBYSCORE', lanes[l], '-inf', now, 'LIMIT', 0, most) end
local turn, i, j, out = tonumber(redis.call('HGET', head, 'turn')) or 0, 1, 1, {}
local ids, of = {}, {}
while #ids < most and (due[0][i] or due[1][j]) do
  local l = 0
  if not due[0][i] then l = 1
  elseif due[1][j] then
    turn = turn + 1
    if turn >= share then turn, l = 0, 1 end
  end
  local id
  if l == 0 then id, i = due[0][i], i + 1 else id, j = due[1][j], j + 1 end
  ids[#ids + 1] = id
  of[#ids] = l
end
local known, gone, holds, states, kept = readRows(ids), {[0] = {}, [1] = {}}, {}, {}, {}
for k = 1, #ids do
  local id, l, r = ids[k], of[k], known[k]
  gone[l][#gone[l] + 1] = id
  if r then
    local n = #states
    states[n + 1], states[n + 2] = id, formatRow(r[1] + 1, r[2], l)
    holds[n + 1], holds[n + 2] = now + ARGV[4], id
    kept[#kept + 1] = id
    out[#out + 1] = {id, r[1] + 1, r[2], l}
  end
end
for l = 0, 1 do runMany('ZREM', lanes[l], gone[l]) end
runMany('HSET', rows, states)
runMany('ZADD', held, holds)
local texts = runMany('HMGET', bodies, kept)
for k = 1, #out do out[k][5] = texts[k] end
redis.call('HSET', head, 'turn', turn)
if #out > 0 then return out end
local next, stop = nextDue(), redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)
local wait = -1
if next then wait = math.max(next - now, 0) end
return {wait, stop[1] and stop[1][1] or '0-0'}`)
	// Further ARGV: visibility in µs, receipts.
	queueExtend = queueScript(`
local before, wake, at = nextDue(), '', now + ARGV[3]
for i = 4, #ARGV do
  local id = heldRow(ARGV[i])
  if id then
    redis.call('ZADD', held, at, id)
    if at < before then wake = 'x' end
  end
end
if wake ~= '' then wake = wakeAll() end
return wake`)
	// Further ARGV: receipts.
	queueAck = queueScript(`
local ids, counts, gone, backlog = {}, {}, {}, 0
for i = 3, #ARGV do
  local id, n = string.match(ARGV[i], '^(%d+)-(%d+)$')
  if id then
    ids[#ids + 1] = id
    counts[#ids] = tonumber(n)
  end
end
local known = readRows(ids)
for k = 1, #ids do
  local r = known[k]
  if r and r[1] == counts[k] and redis.call('ZREM', held, ids[k]) == 1 then
    gone[#gone + 1] = ids[k]
    backlog = backlog + r[3]
  end
end
if backlog > 0 then redis.call('HINCRBY', head, 'backlog', -backlog) end
runMany('HDEL', bodies, gone)
runMany('HDEL', rows, gone)
return ''`)
	// Further ARGV: receipt, delay in µs.
	queueRelease = queueScript(`
local id, r, _, l = heldRow(ARGV[3])
if not id then return '' end
local before, at = nextDue(), now + ARGV[4]
redis.call('ZREM', held, id)
if r >= maxReceives then redis.call('ZADD', last, at, id) else redis.call('ZADD', lanes[l], at, id) end
if at < before then return wakeAll() end
return ''`)
	// queueDepth returns how many messages are ready, delayed, in flight, dead and in the
	// backlog lane. It also returns the enqueue time of the oldest ready message. To find
	// that message it reads only the first thousand ready messages of each lane.
	queueDepth = queueScript(`
local ready, all, oldest = 0, 0, ''
for l = 0, 1 do
  ready = ready + redis.call('ZCOUNT', lanes[l], '-inf', now)
  all = all + redis.call('ZCARD', lanes[l])
  local min
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', lanes[l], '-inf', now, 'LIMIT', 0, 1000)) do
    if not min or id < min then min = id end
  end
  if min then
    local _, e = readRow(min)
    if e and (oldest == '' or tonumber(e) < tonumber(oldest)) then oldest = e end
  end
end
return {ready, all - ready + redis.call('ZCARD', last), redis.call('ZCARD', held), redis.call('ZCARD', dead),
  redis.call('HGET', head, 'backlog') or '0', oldest}`)
)

// run runs a script with the keys of the queue.
func (q *queue) run(ctx context.Context, sc *client.Script, args ...any) (any, error) {
	return q.s.run(ctx, sc, q.keys, append([]any{q.maxReceives}, args...)...)
}

// runAndWake runs a script that may make a message visible earlier. If the script added an
// entry to the stream, runAndWake wakes the receivers of this process at once. Otherwise
// they would wait until the goroutine follow has read the entry from the stream.
func (q *queue) runAndWake(ctx context.Context, sc *client.Script, args ...any) error {
	v, err := q.run(ctx, sc, args...)
	if id := asString(v); err == nil && id != "" {
		q.wake.advance(id)
	}
	return err
}

// Enqueue stores all messages or none.
func (q *queue) Enqueue(ctx context.Context, ms []engine.Message) error {
	if err := engine.CheckMessages(ms); err != nil {
		return err
	}
	args := make([]any, 0, 3*len(ms))
	for _, m := range ms {
		lane := 0
		if m.Backlog {
			lane = 1
		}
		args = append(args, ceilMicros(m.Delay), lane, m.Body)
	}
	if len(ms) == 0 {
		return nil
	}
	return q.runAndWake(ctx, queueEnqueue, args...)
}

// Receive waits until a message is ready or ctx ends. It returns up to max messages. No other
// call of Receive returns these messages before the duration visibility has passed.
func (q *queue) Receive(ctx context.Context, max int, visibility time.Duration) ([]engine.Delivery, error) {
	if err := engine.CheckVisibility(visibility); err != nil || max <= 0 {
		return nil, err
	}
	q.wake.addReceiver()
	defer q.wake.removeReceiver()
	for ctx.Err() == nil {
		// The end of ctx does not cancel the script. If the answer of the script were lost,
		// no process would work on its messages until their visibility ends.
		v, err := q.run(context.WithoutCancel(ctx), queueReceive, max, ceilMicros(visibility), engine.BacklogShare)
		if err != nil {
			return nil, err
		}
		l := asList(v)
		if _, ok := element(l, 0).([]any); ok {
			return deliveries(l), nil
		}
		q.wake.wait(ctx, asInt(element(l, 0)), asString(element(l, 1)))
	}
	return nil, nil
}

func deliveries(l []any) (out []engine.Delivery) {
	for _, v := range l {
		f := asList(v)
		id, receives := asString(element(f, 0)), asInt(element(f, 1))
		out = append(out, engine.Delivery{
			Receipt: fmt.Sprintf("%s-%d", id, receives), Body: []byte(asString(element(f, 4))), Receives: int(receives),
			Enqueued: time.UnixMicro(asInt(element(f, 2))), Backlog: asInt(element(f, 3)) == 1,
		})
	}
	return out
}

// Extend gives the deliveries with these receipts a new visibility, which begins now: no call of
// Receive returns their messages before the given duration has passed.
func (q *queue) Extend(ctx context.Context, receipts []string, visibility time.Duration) error {
	if err := engine.CheckVisibility(visibility); err != nil || len(receipts) == 0 {
		return err
	}
	return q.runAndWake(ctx, queueExtend, append([]any{ceilMicros(visibility)}, toAnys(receipts)...)...)
}

// Ack removes the messages with these receipts from the queue.
func (q *queue) Ack(ctx context.Context, receipts []string) error {
	if len(receipts) == 0 {
		return nil
	}
	_, err := q.run(ctx, queueAck, toAnys(receipts)...)
	return err
}

func toAnys(in []string) []any {
	out := make([]any, len(in))
	for i, s := range in {
		out[i] = s
	}
	return out
}

// Release makes a message ready again after the given delay. The delivery that is released still
// counts towards maxReceives.
func (q *queue) Release(ctx context.Context, receipt string, delay time.Duration) error {
	if err := engine.CheckDelay(delay); err != nil {
		return err
	}
	return q.runAndWake(ctx, queueRelease, receipt, ceilMicros(delay))
}

// Depth counts the messages. To find the value of the field Oldest, it reads only the first
// thousand ready messages of each lane.
func (q *queue) Depth(ctx context.Context) (d engine.QueueDepth, err error) {
	v, err := q.run(ctx, queueDepth)
	if err != nil {
		return d, err
	}
	l := asList(v)
	n := func(i int) int { return int(asInt(element(l, i))) }
	d = engine.QueueDepth{Ready: n(0), Delayed: n(1), InFlight: n(2), Dead: n(3), Backlog: n(4)}
	if e := asString(element(l, 5)); e != "" {
		us, _ := strconv.ParseInt(e, 10, 64)
		d.Oldest = time.UnixMicro(us)
	}
	return d, nil
}

// QueueBodies calls fn with the body of every message that is in the named queue during the
// whole call. It includes dead messages. It may call fn twice for the same message. It
// stops when fn returns an error, and returns that error.
func (s *Store) QueueBodies(ctx context.Context, name string, fn func(body []byte) error) error {
	key := s.key("{queue:" + name + "}:bodies")
	for cursor := uint64(0); ; {
		page, next, err := s.c.HScan(ctx, key, cursor, "", 1000).Result()
		if err != nil {
			return translate(err)
		}
		for i := 1; i < len(page); i += 2 {
			if err := fn([]byte(page[i])); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// streamIDAfter reports whether the stream id a is later than the stream id b.
func streamIDAfter(a, b string) bool {
	ams, aseq := streamID(a)
	bms, bseq := streamID(b)
	return ams > bms || ams == bms && aseq > bseq
}

func streamID(id string) (ms, seq uint64) {
	m, s, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(m, 10, 64)
	seq, _ = strconv.ParseUint(s, 10, 64)
	return ms, seq
}
