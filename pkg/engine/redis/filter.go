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
//	mark        hash: since (µs), of (the server's run id and the filter's size), turn
//	            (number of the newer window), and the window of each bitmap
//	<part>a, b  two bitmaps, one for each generation. Add sets bits in the newer. After a
//	            window the older one is removed and becomes the newer, empty.
//
// The filter is complete since the later of since and the begin of the older generation.
// A script sets since to now
//   - if there is no mark: Redis was emptied;
//   - if the mark is of another run of the server, which may have lost the last second, or
//     of another server, a replica that may lag;
//   - if the mark has another size: a process with other settings sets other bits;
//   - if an expected bitmap is missing: it was evicted.
//
// So a filter never reports an id as unseen that may have been lost in these ways. One case
// remains: the add of an id fails, and the worker dies before it calls Incomplete, while
// the server lives.

// FilterConfig sizes a filter. All processes that share a filter must use the same values.
type FilterConfig struct {
	Name   string        // of the filter
	Rate   float64       // sustained ids per second, above 0
	Window time.Duration // ids are remembered at least so long; 1 s or more
}

// partBits is the greatest size of one bitmap. Redis fills a new bitmap with zeros while all
// other clients wait; this size takes 1 ms (measured).
const partBits = 1 << 25

// falsePositives is the share of ids that were never added but that Seen reports as
// perhaps added, when both generations are full.
const falsePositives = 0.02

// idsPerCall bounds how long one command blocks all other clients: 0.4 ms.
const idsPerCall = 200

// Filter is a store.Filter that all processes share that use its name.
type Filter struct {
	s      *Store
	tag    string // prefix of its keys
	window time.Duration
	parts  uint64
	bits   uint64 // of a part; bit 0 is always set and shows that the bitmap exists
	hashes int    // bits that an id sets
	size   string // stored in the mark
	// newestWindow is the number of the newer generation's window, as Add saw it last. Add
	// chooses the bitmap by it before it knows the current one.
	newestWindow atomic.Int64
}

// filterUpdate removes the bitmaps of a part whose window is over, creates the newer one,
// and updates the mark. KEYS: mark, a, b. ARGV: window in µs, size, part, and 1 for
// Incomplete. It returns the number of the newer window, and since when the filter is
// complete.
//
// Plain commands in the same transaction read and set the bits. To pass thousands of bits
// through Lua takes four times as long.
var filterUpdate = script(`
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

// transact runs filterUpdate on a part, and then the commands that put adds, in one
// transaction. a and b are the keys of the bitmaps. window is the number of the newer window.
func (f *Filter) transact(ctx context.Context, part uint64, incomplete int, put func(p client.Pipeliner, a, b string)) (window int64, complete time.Time, err error) {
	if ctx.Err() != nil {
		return 0, complete, translate(context.Cause(ctx))
	}
	keys := f.keys(part)
	var updated *client.Cmd
	_, err = f.s.c.TxPipelined(ctx, func(p client.Pipeliner) error {
		updated = filterUpdate.Eval(ctx, p, keys, f.s.clockArg(), micros(f.window), f.size, part, incomplete)
		put(p, keys[1], keys[2])
		return nil
	})
	if err != nil {
		return 0, complete, translate(err)
	}
	l, err := updated.Slice()
	return asInt(element(l, 0)), time.UnixMicro(asInt(element(l, 1))), translate(err)
}

// eachCall splits ids by part, and each part into pieces of at most idsPerCall ids. It calls
// fn for all pieces at the same time, with the indexes of the ids.
func (f *Filter) eachCall(ids []uint64, fn func(part uint64, indexes []int) error) error {
	byPart := make([][]int, f.parts)
	for i, id := range ids {
		part := (id >> 32) % f.parts
		byPart[part] = append(byPart[part], i)
	}
	var g errgroup.Group
	for part, indexes := range byPart {
		for piece := range slices.Chunk(indexes, idsPerCall) {
			g.Go(func() error { return fn(uint64(part), piece) })
		}
	}
	return g.Wait()
}

// eachBit calls fn with the number of each bit of an id in its part.
func (f *Filter) eachBit(id uint64, fn func(bit uint64)) {
	id = notify.Mix(id) // otherwise the bits that chose the part would also choose the bits in it
	step := notify.Mix(id) | 1
	for range f.hashes {
		fn(1 + id%(f.bits-1))
		id += step
	}
}

// Add remembers ids for at least the filter's window.
func (f *Filter) Add(ctx context.Context, ids []uint64) error {
	return f.eachCall(ids, func(part uint64, indexes []int) error {
		args := make([]any, 0, 4*len(indexes)*f.hashes)
		for _, i := range indexes {
			f.eachBit(ids[i], func(bit uint64) { args = append(args, "SET", "u1", bit, 1) })
		}
		for {
			guess := f.newestWindow.Load()
			window, _, err := f.transact(ctx, part, 0, func(p client.Pipeliner, a, b string) {
				p.BitField(ctx, []string{a, b}[guess&1], args...)
			})
			if err != nil || window&1 == guess&1 {
				return err
			}
			// The bits went into the older generation, where they only raise the share of
			// false positives. Set them again in the newer one.
			f.newestWindow.Store(window)
		}
	})
}

// Seen reports for each id whether it may have been added. complete is since when the
// filter is complete; Seen also returns it when it is called without ids.
func (f *Filter) Seen(ctx context.Context, ids []uint64) (maybe []bool, complete time.Time, err error) {
	maybe = make([]bool, len(ids))
	var mu sync.Mutex // guards maybe and complete
	readBits := func(part uint64, indexes []int) error {
		args := make([]any, 0, 3*len(indexes)*f.hashes)
		for _, i := range indexes {
			f.eachBit(ids[i], func(bit uint64) { args = append(args, "GET", "u1", bit) })
		}
		var gens []*client.IntSliceCmd
		_, since, err := f.transact(ctx, part, 0, func(p client.Pipeliner, a, b string) {
			if len(indexes) > 0 {
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
			if err == nil && len(bits) != len(indexes)*f.hashes {
				err = fmt.Errorf("%w: %d bits of a filter", notify.ErrCorrupt, len(bits))
			}
			if err != nil {
				return translate(err)
			}
			for k, i := range indexes {
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
		err = readBits(0, nil)
	} else {
		err = f.eachCall(ids, readBits)
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	return maybe, complete, nil
}

// Incomplete records that an id may be missing: the filter is complete only from now on.
func (f *Filter) Incomplete(ctx context.Context) error {
	_, _, err := f.transact(ctx, 0, 1, func(client.Pipeliner, string, string) {})
	return err
}
