package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Spill is the spill buffer. It is a stream whose ids are the seqs. The size of a record is
// the number of bytes of its topic, key and value. A seq is normally the server's time in
// µs. If this time is not greater than the previous seq, the seq is instead the previous
// seq plus 1. So new seqs are greater than old seqs even after Redis was emptied. If Redis
// is emptied between a Peek and a Drop of a process, this Drop removes no new record.
type Spill struct{ s *Store }

const spillTag = "{spill}:"

var (
	// KEYS: records, head. ARGV: limit, size, then topic, key, part, value and at of each
	// record. It returns 1, or 0 if the records do not fit into the limit.
	spillPush = newScript(`
local head = redis.call('HMGET', KEYS[2], 'seq', 'bytes')
local seq, bytes = tonumber(head[1]) or 0, tonumber(head[2]) or 0
local size = tonumber(ARGV[3])
if size > 0 and bytes + size > tonumber(ARGV[2]) then return 0 end
for i = 4, #ARGV, 5 do
  seq = math.max(seq + 1, now)
  redis.call('XADD', KEYS[1], string.format('%.0f-0', seq), 't', ARGV[i], 'k', ARGV[i + 1], 'p', ARGV[i + 2], 'v', ARGV[i + 3], 'a', ARGV[i + 4])
end
redis.call('HSET', KEYS[2], 'seq', string.format('%.0f', seq), 'bytes', string.format('%.0f', bytes + size))
return 1`)
	// KEYS: records, head. ARGV: id of the last record to remove, greatest number of
	// records to remove. It returns how many records it removed.
	spillDrop = newScript(`
local recs = redis.call('XRANGE', KEYS[1], '-', ARGV[2], 'COUNT', ARGV[3])
if #recs == 0 then return 0 end
local size = 0
for _, r in ipairs(recs) do
  local f = r[2]
  size = size + #f[2] + #f[4] + #f[8]
  redis.call('XDEL', KEYS[1], r[1])
end
local bytes = tonumber(redis.call('HGET', KEYS[2], 'bytes')) or 0
redis.call('HSET', KEYS[2], 'bytes', string.format('%.0f', math.max(bytes - size, 0)))
return #recs`)
	// KEYS: records, head. It returns the number of records, the number of their bytes, and the
	// accept time (At) of the oldest record.
	spillStats = newScript(`
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
local at = '0'
if #first > 0 then at = first[1][2][10] end
return {redis.call('XLEN', KEYS[1]), redis.call('HGET', KEYS[2], 'bytes') or '0', at}`)
)

func (p Spill) keys() []string {
	return []string{p.s.key(spillTag + "records"), p.s.key(spillTag + "head")}
}

// Push stores records in order. It returns notify.KindUnavailable
//   - with code spill_full if the buffer would become larger than limit bytes. No record is
//     stored;
//   - with code spill_not_durable if Redis neither fsyncs every write nor has a replica. No
//     record is stored. Push also returns this code if no replica confirmed the records in
//     time, or if Redis does not fsync every write any more. In these two cases the records
//     may be stored.
func (p Spill) Push(ctx context.Context, recs []engine.Spilled, limit int64) error {
	if len(recs) == 0 {
		return nil
	}
	node, err := p.s.nodeForKey(ctx, p.keys()[0])
	if err != nil {
		return err
	}
	before, err := durability(ctx, node)
	if err != nil {
		return err
	}
	if !before.Always() && before.Replicas == 0 {
		return notDurable(errors.New("redis has no replica and does not fsync every write: this needs appendonly yes, appendfsync always and no-appendfsync-on-rewrite no"))
	}
	size := int64(0)
	args := []any{p.s.clockArg(), limit, 0}
	for i := range recs {
		r := &recs[i]
		size += int64(len(r.Topic) + len(r.Key) + len(r.Value))
		args = append(args, r.Topic, r.Key, r.Part, r.Value, r.At)
	}
	args[2] = size

	// All commands use the same connection. WAIT counts only the replicas that have the
	// writes of its own connection. And ConfigGet must read the settings of the server that
	// stored the records.
	var push *client.Cmd
	var settings *client.MapStringStringCmd
	var confirmed *client.Cmd
	_, err = node.Pipelined(ctx, func(pipe client.Pipeliner) error {
		push = spillPush.Eval(ctx, pipe, p.keys(), args...)
		if before.Always() {
			settings = pipe.ConfigGet(ctx, "*append*")
		} else {
			confirmed = pipe.Do(ctx, "WAIT", 1, (p.s.cfg.Timeout * 2 / 3).Milliseconds())
		}
		return nil
	})
	if err != nil {
		reloadIfMoved(ctx, p.s, err)
		return translate(err)
	}
	if n, err := push.Int(); err != nil {
		return translate(err)
	} else if n == 0 {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "spill_full", Msg: "the spill buffer is full", RetryAfter: retryAfter}
	}
	if settings != nil {
		after := Durability{}
		if after.readSettings(settings.Val()); !after.Always() {
			return notDurable(errors.New("redis does not fsync every write any more: its settings were changed while the records were written"))
		}
		return nil
	}
	if asInt(confirmed.Val()) <= 0 {
		return notDurable(errors.New("no replica of redis confirmed the records in time"))
	}
	return nil
}

func notDurable(err error) error { return notify.Unavailable("spill_not_durable", retryAfter, err) }

// reloadIfMoved reloads the layout of the cluster if err says that a key is now on another
// node or that the node has become a replica. The client of one node cannot find the new
// node itself.
func reloadIfMoved(ctx context.Context, s *Store, err error) {
	if c, ok := s.c.(*client.ClusterClient); ok && (client.HasErrorPrefix(err, "MOVED") || client.HasErrorPrefix(err, "READONLY")) {
		c.ReloadState(ctx)
	}
}

// Peek returns up to max of the oldest records. The records stay in the buffer.
func (p Spill) Peek(ctx context.Context, max int) ([]engine.Spilled, error) {
	if ctx.Err() != nil {
		return nil, translate(context.Cause(ctx))
	}
	if max <= 0 {
		return nil, nil
	}
	msgs, err := p.s.c.XRangeN(ctx, p.keys()[0], "-", "+", int64(max)).Result()
	if err != nil {
		return nil, translate(err)
	}
	out := make([]engine.Spilled, len(msgs))
	for i, m := range msgs {
		ms, _, _ := strings.Cut(m.ID, "-")
		seq, _ := strconv.ParseUint(ms, 10, 64)
		part := asInt(m.Values["p"])
		out[i] = engine.Spilled{
			Seq: seq, Topic: asString(m.Values["t"]), Key: asBytes(m.Values["k"]), Part: int32(part),
			Value: asBytes(m.Values["v"]), At: asInt(m.Values["a"]),
		}
	}
	return out, nil
}

func asBytes(v any) []byte {
	if s := asString(v); s != "" {
		return []byte(s)
	}
	return nil
}

// Drop removes the records up to and including the one with this seq. The caller has already
// appended these records to the log.
func (p Spill) Drop(ctx context.Context, seq uint64) error {
	const most = 1000 // small, because a script blocks all other clients
	for {
		v, err := p.s.run(ctx, spillDrop, p.keys(), strconv.FormatUint(seq, 10)+"-0", most)
		if err != nil || asInt(v) < most {
			return err
		}
	}
}

// Stats returns the number of records and bytes in the buffer, and the accept time of the oldest
// record, ms since 1970. This time is 0 if the buffer is empty.
func (p Spill) Stats(ctx context.Context) (records, bytes, oldest int64, err error) {
	v, err := p.s.run(ctx, spillStats, p.keys())
	l := asList(v)
	return asInt(element(l, 0)), asInt(element(l, 1)), asInt(element(l, 2)), err
}
