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

// A filter has these keys, all with one hash tag:
//
//	mark        hash with the fields
//	            "since"  µs
//	            "of"     the server's run id and the filter's size
//	            "turn"   the number of the newer window
//	            and one field for each bitmap: the window of the bitmap
//	<part>a, b  two bitmaps of each part, one for each generation. A large filter has several
//	            parts, and each id belongs to one part. Add sets bits in the newer bitmap.
//	            At the end of a window the older bitmap is removed, and an empty bitmap
//	            with its key becomes the newer bitmap.
//
// For each filter a time is known since which it is complete: it contains every id that was
// added after that time. This is the time at which the older generation began, or the time in
// the field "since" if that is later. A script sets the field "since" to the current time
//   - if the mark is missing: Redis was emptied;
//   - if the mark has the run id of another process of the server. The server was restarted
//     and may have lost the writes of the last second. Or a replica is now the master and
//     may lack the latest writes;
//   - if the mark has another size: a process with other settings has set other bits;
//   - if a bitmap of the mark is missing: Redis evicted it.
//
// So if an id was lost in one of these ways, it was added before the time since which the
// filter is complete. Callers do not rely on the filter for such an id. One case remains: the
// Add of an id fails, and the worker dies before it calls Incomplete, while the server
// continues to run. The filter then wrongly reports that the id was never added.

// FilterConfig determines the size of a filter. All processes that share a filter must use
// the same values.
type FilterConfig struct {
	Name   string        // name of the filter
	Rate   float64       // average number of ids per second; greater than 0
	Window time.Duration // an id is remembered at least this long; 1 s or more
}

// partBits is the greatest number of bits of one bitmap. While Redis fills a new bitmap
// with zeros, all other clients wait. A bitmap of this size takes 1 ms (measured).
const partBits = 1 << 25

// falsePositives is the share of false positives when both generations are full. A false
// positive is an id that was never added but that Seen reports as perhaps added.
const falsePositives = 0.02

// idsPerCall is the greatest number of ids of one command. A command with this number of
// ids blocks all other clients for 0.4 ms.
const idsPerCall = 200

// Filter is a store.Filter. All processes that use the same name share one filter.
type Filter struct {
	s      *Store
	tag    string // prefix of its keys
	window time.Duration
	parts  uint64
	// bits is the number of bits of a part. Bit 0 is always set, to show that the bitmap
	// exists.
	bits   uint64
	hashes int    // bits that an id sets
	size   string // stored in the mark
	// newestWindow is the number of the newest window, as the last Add learned it from Redis.
	// Add uses it to guess which bitmap is the newer one, because Redis returns the current
	// number only in its answer.
	newestWindow atomic.Int64
}

// filterUpdate works on one part of the filter. It removes bitmaps whose window is over,
// creates the bitmap of the newer generation, and updates the mark. KEYS: mark, a, b. ARGV:
// window in µs, size, part, and 1 if Incomplete calls it, otherwise 0. It returns the number of
// the newer window, and the time in µs since which the filter is complete.
//
// The script does not read or set the bits of ids. Plain commands in the same transaction do
// that, because thousands of bits in a Lua script take four times as long.
var filterUpdate = newScript(`
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

// transact runs one transaction: the script filterUpdate on a part, and then the commands that the
// function addCommands adds. This function gets the keys of the two bitmaps (a and b). transact
// returns the number of the newer window, and the time since which the filter is complete.
func (f *Filter) transact(ctx context.Context, part uint64, incomplete int, addCommands func(p client.Pipeliner, a, b string)) (window int64, completeSince time.Time, err error) {
	if ctx.Err() != nil {
		return 0, completeSince, translate(context.Cause(ctx))
	}
	keys := f.keys(part)
	var updated *client.Cmd
	_, err = f.s.c.TxPipelined(ctx, func(p client.Pipeliner) error {
		updated = filterUpdate.Eval(ctx, p, keys, f.s.clockArg(), micros(f.window), f.size, part, incomplete)
		addCommands(p, keys[1], keys[2])
		return nil
	})
	if err != nil {
		return 0, completeSince, translate(err)
	}
	l, err := updated.Slice()
	return asInt(element(l, 0)), time.UnixMicro(asInt(element(l, 1))), translate(err)
}

// eachCall groups ids by part and divides each group into pieces of at most idsPerCall ids. It
// calls fn for all pieces concurrently. The argument indexes contains, for each id of the piece,
// the position of the id in ids.
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

// eachBit calls fn with the number of each bit that an id sets. Bit 0 is the first bit of
// the id's part.
func (f *Filter) eachBit(id uint64, fn func(bit uint64)) {
	id = notify.Mix(id) // otherwise the same bits of id would choose the part and the bits in the part
	step := notify.Mix(id) | 1
	for range f.hashes {
		fn(1 + id%(f.bits-1))
		id += step
	}
}

// Add adds ids to the filter, which remembers them for at least its window.
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
			// Redis has begun a new window since the last Add of this process, so the bits were
			// set in the older bitmap. There they do no harm except more false positives. Set
			// them again in the newer bitmap.
			f.newestWindow.Store(window)
		}
	})
}

// Seen reports for each id whether it may have been added. The result completeSince is the
// time since which the filter is complete. Seen also returns it if ids is empty.
func (f *Filter) Seen(ctx context.Context, ids []uint64) (maybe []bool, completeSince time.Time, err error) {
	maybe = make([]bool, len(ids))
	var mu sync.Mutex // guards maybe and completeSince
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
		if since.After(completeSince) {
			completeSince = since
		}
		for _, gen := range gens {
			bits, err := gen.Result()
			if err == nil && len(bits) != len(indexes)*f.hashes {
				err = fmt.Errorf("%w: an answer about a filter has %d bits, but it must have %d", notify.ErrCorrupt, len(bits), len(indexes)*f.hashes)
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
	return maybe, completeSince, nil
}

// Incomplete stores in the mark that an id may be missing. From then on, the filter is
// complete only since the time of this call.
func (f *Filter) Incomplete(ctx context.Context) error {
	_, _, err := f.transact(ctx, 0, 1, func(client.Pipeliner, string, string) {})
	return err
}
