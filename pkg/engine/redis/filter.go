package redis

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/notify"
)

// The keys of a filter, all under one hash tag:
//
//	mark        hash: since (µs), of (server's run id and the filter's size), and
//	            the generation of each bitmap
//	<part>a, b  bitmaps of a generation each; what is added goes into the newer,
//	            and after a window the older makes room
//
// complete is the later of since and the begin of the older generation. since
// becomes now when there is no mark (Redis was emptied), when the mark is of
// another run of the server (it may have lost the last second) or another server
// (a replica that may lag), of another size (a process with other settings adds
// elsewhere), and when a bitmap is gone that should be there (evicted). So a
// filter never claims what it cannot know; what remains is an id whose add failed
// and whose worker died before it could say Incomplete, while the server lived.

// FilterConfig sizes a filter. Processes that share it agree about all of it.
type FilterConfig struct {
	Name   string        // of the filter
	Rate   float64       // ids per second, sustained, above 0
	Window time.Duration // ids are remembered so long at least; 1 s or more
}

// partBits is the size of one bitmap at most: Redis fills a new one with zeros
// while everybody waits, which takes 1 ms here.
const partBits = 1 << 25

// falsePositives is the share of ids never added that Seen takes for added,
// when both generations are full.
const falsePositives = 0.02

// idsPerCall bounds how long one command keeps everybody else waiting: 0.4 ms.
const idsPerCall = 200

// Filter is a store.Filter that the processes of a name share.
type Filter struct {
	s      *Store
	tag    string
	window time.Duration
	parts  uint64
	bits   uint64 // of a part, the first of which says that it exists
	hashes int
	size   string
	newer  atomic.Int64 // the generation that Add found to be the newer
}

// filterRoll brings the two bitmaps of a part up to date: it makes room and keeps
// the mark. KEYS mark, a, b; ARGV window in µs, size, part, 1 to say Incomplete.
// Returns which generation is the newer, and since when the filter is complete.
//
// The bits themselves are read and set by plain commands in the same transaction:
// passing thousands of them through Lua takes four times as long.
var filterRoll = script(`
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local of, window, part = run .. ' ' .. ARGV[3], tonumber(ARGV[2]), ARGV[4]
local mark = redis.call('HMGET', KEYS[1], 'of', 'since', 'turn', 'a' .. part, 'b' .. part)
local since = tonumber(mark[2])
local turn = math.max(math.floor(now / window), tonumber(mark[3]) or 0)
if mark[1] ~= of or not since or ARGV[5] == '1' then since = now end
local names, gens = {[0] = 'a' .. part, [1] = 'b' .. part}, {[0] = tonumber(mark[4]), [1] = tonumber(mark[5])}
if mark[1] and string.sub(mark[1], #run + 1) ~= ' ' .. ARGV[3] then gens = {} end
local function make(key)
  redis.call('SETBIT', key, 0, 1)
  redis.call('PEXPIRE', key, string.format('%.0f', window / 1000 * 3))
end
for back = 0, 1 do
  local i = (turn - back) % 2
  local key = KEYS[2 + i]
  if gens[i] ~= turn - back then
    redis.call('UNLINK', key)
    if back == 0 then
      make(key)
      redis.call('HSET', KEYS[1], names[i], string.format('%.0f', turn))
    end
  elseif redis.call('GETBIT', key, 0) == 0 then
    since = now
    make(key)
  end
end
if mark[1] ~= of or tonumber(mark[2]) ~= since or tonumber(mark[3]) ~= turn then
  redis.call('HSET', KEYS[1], 'of', of, 'since', string.format('%.0f', since), 'turn', string.format('%.0f', turn))
end
return {turn, string.format('%.0f', math.max(since, (turn - 1) * window))}`)

func (f *Filter) keys(part uint64) []string {
	return []string{f.tag + "mark", fmt.Sprintf("%s%da", f.tag, part), fmt.Sprintf("%s%db", f.tag, part)}
}

// roll runs filterRoll on a part, and what else put asks for, in one transaction.
func (f *Filter) roll(ctx context.Context, part uint64, incomplete int, put func(p client.Pipeliner, a, b string)) (turn int64, complete time.Time, err error) {
	if ctx.Err() != nil {
		return 0, complete, translate(context.Cause(ctx))
	}
	keys := f.keys(part)
	var rolled *client.Cmd
	_, err = f.s.c.TxPipelined(ctx, func(p client.Pipeliner) error {
		rolled = filterRoll.Eval(ctx, p, keys, f.s.now(), micros(f.window), f.size, part, incomplete)
		put(p, keys[1], keys[2])
		return nil
	})
	if err != nil {
		return 0, complete, translate(err)
	}
	l, err := rolled.Slice()
	return asInt(at(l, 0)), time.UnixMicro(asInt(at(l, 1))), translate(err)
}

// each calls fn with the ids of each part, idsPerCall at most, of all parts at the same time.
func (f *Filter) each(ids []uint64, fn func(part uint64, at []int) error) error {
	byPart := make([][]int, f.parts)
	for i, id := range ids {
		part := (id >> 32) % f.parts
		byPart[part] = append(byPart[part], i)
	}
	var g errgroup.Group
	for part, at := range byPart {
		for at := range slices.Chunk(at, idsPerCall) {
			g.Go(func() error { return fn(uint64(part), at) })
		}
	}
	return g.Wait()
}

// places calls fn with the bits of an id.
func (f *Filter) places(id uint64, fn func(bit uint64)) {
	id = notify.Mix(id) // the bits that chose the part must not choose again
	step := notify.Mix(id) | 1
	for range f.hashes {
		fn(1 + id%(f.bits-1))
		id += step
	}
}

// Add remembers ids for at least the filter's window.
func (f *Filter) Add(ctx context.Context, ids []uint64) error {
	return f.each(ids, func(part uint64, which []int) error {
		args := make([]any, 0, 4*len(which)*f.hashes)
		for _, i := range which {
			f.places(ids[i], func(bit uint64) { args = append(args, "SET", "u1", bit, 1) })
		}
		for {
			guess := f.newer.Load()
			turn, _, err := f.roll(ctx, part, 0, func(p client.Pipeliner, a, b string) {
				p.BitField(ctx, []string{a, b}[guess&1], args...)
			})
			if err != nil || turn&1 == guess&1 {
				return err
			}
			// They went into the older generation, where they do no harm.
			f.newer.Store(turn)
		}
	})
}

// Seen reports of each id whether it may have been added. Without ids it tells
// since when the filter is complete.
func (f *Filter) Seen(ctx context.Context, ids []uint64) (maybe []bool, complete time.Time, err error) {
	maybe = make([]bool, len(ids))
	var mu sync.Mutex // of what is returned
	ask := func(part uint64, which []int) error {
		args := make([]any, 0, 3*len(which)*f.hashes)
		for _, i := range which {
			f.places(ids[i], func(bit uint64) { args = append(args, "GET", "u1", bit) })
		}
		var gens []*client.IntSliceCmd
		_, since, err := f.roll(ctx, part, 0, func(p client.Pipeliner, a, b string) {
			if len(which) > 0 {
				gens = append(gens, p.BitField(ctx, a, args...), p.BitField(ctx, b, args...))
			}
		})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if since.After(complete) {
			complete = since
		}
		for _, gen := range gens {
			bits, err := gen.Result()
			if err == nil && len(bits) != len(which)*f.hashes {
				err = fmt.Errorf("%w: %d bits of a filter", notify.ErrCorrupt, len(bits))
			}
			if err != nil {
				return translate(err)
			}
			for k, i := range which {
				all := int64(1)
				for _, bit := range bits[k*f.hashes : (k+1)*f.hashes] {
					all &= bit
				}
				maybe[i] = maybe[i] || all == 1
			}
		}
		return nil
	}
	if len(ids) == 0 {
		err = ask(0, nil)
	} else {
		err = f.each(ids, ask)
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	return maybe, complete, nil
}

// Incomplete says that something was not added: complete is now at least.
func (f *Filter) Incomplete(ctx context.Context) error {
	_, _, err := f.roll(ctx, 0, 1, func(client.Pipeliner, string, string) {})
	return err
}
