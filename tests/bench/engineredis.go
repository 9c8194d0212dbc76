package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/redis"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// redisFigures measures the data that processes share through Redis. The peers store the same data
// with as few commands as possible, with the same client library and in pipelines. They guarantee
// nothing if Redis loses its data or fails over, and they wait for no replica, token or message.
// The lines of these measurements have no bound; they are for information.
func redisFigures(ctx context.Context, b *bench, address string) {
	prefix := fmt.Sprintf("bench-%08x:", rand.Uint32())
	store := rig.Must(redis.Open(ctx, redis.Config{Addresses: []string{address}, Prefix: prefix, Timeout: time.Minute}))
	defer store.Close()
	cl := goredis.NewClient(&goredis.Options{Addr: address, PoolSize: 32, ReadTimeout: 5 * time.Second, WriteTimeout: time.Minute})
	defer cl.Close()
	r := &redisBench{bench: b, store: store, c: cl, prefix: prefix}
	defer func() {
		if err := rig.Try(func() { r.clean(context.WithoutCancel(ctx)) }); err != nil {
			b.notef("could not remove all keys with the prefix %s: %v", prefix, err)
		}
	}()
	r.measureFilter(ctx)
	r.measureLimits(ctx)
	r.measureClaims(ctx)
	r.measureQueue(ctx)
}

type redisBench struct {
	*bench
	store  *redis.Store
	c      *goredis.Client
	prefix string
}

func (r *redisBench) clean(ctx context.Context) {
	it := r.c.Scan(ctx, 0, r.prefix+"*", 1000).Iterator()
	for it.Next(ctx) {
		rig.Ok(r.c.Unlink(ctx, it.Val()).Err())
	}
	rig.Ok(it.Err())
}

// pipelined calls f, which adds commands to p, and sends them in one pipeline. It panics if a
// command fails.
func (r *redisBench) pipelined(ctx context.Context, f func(p goredis.Pipeliner)) {
	rig.Must(r.c.Pipelined(ctx, func(p goredis.Pipeliner) error { f(p); return nil }))
}

// measureFilter measures the filter of seen ids. For each group of outcomes, the product adds ids
// to it and looks ids up in it.
func (r *redisBench) measureFilter(ctx context.Context) {
	const each, bits = 1000, 7
	f := rig.Must(r.store.Filter(redis.FilterConfig{Name: "bench", Rate: 1000, Window: time.Hour}))
	ids := func() []uint64 {
		out := make([]uint64, each)
		for i := range out {
			out[i] = rand.Uint64()
		}
		return out
	}
	// A command has 200 ids, as in the product. During a longer command all other clients would
	// wait.
	bare := func(ctx context.Context, op string) int {
		r.pipelined(ctx, func(p goredis.Pipeliner) {
			for range each / 200 {
				args := make([]any, 0, 4*200*bits)
				for range 200 * bits {
					if args = append(args, op, "u1", rand.Uint64N(1<<25)); op == "SET" {
						args = append(args, 1)
					}
				}
				p.BitField(ctx, r.prefix+"bits", args...)
			}
		})
		return each
	}
	r.compareFloods(ctx, versus{
		key: "redis_filter_add", work: "ids added to the seen-filter, 1,000 a call, 4 calls at a time",
		unit: "ids/s", peer: "BITFIELD of 7 bits an id, pipelined", callers: 4,
	}, func(ctx context.Context, _ int) int { return rig.Must(each, f.Add(ctx, ids())) },
		func(ctx context.Context, _ int) int { return bare(ctx, "SET") })
	r.compareFloods(ctx, versus{
		key: "redis_filter_seen", work: "ids looked up in both generations of the seen-filter, 1,000 a call, 4 calls at a time",
		unit: "ids/s", peer: "BITFIELD of 7 bits an id in one bitmap, pipelined", callers: 4,
	}, func(ctx context.Context, _ int) int {
		rig.Must2(f.Seen(ctx, ids()))
		return each
	}, func(ctx context.Context, _ int) int { return bare(ctx, "GET") })
}

// bareBucket is a simple token bucket, as in many tutorials. It does not return the time until the
// next token.
var bareBucket = goredis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local have = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(have[1]) or tonumber(ARGV[2]), tonumber(have[2]) or now
tokens = math.min(tokens + (now - at) / 1000000 * ARGV[1], tonumber(ARGV[2]))
local got = math.min(1, math.floor(tokens))
redis.call('HSET', KEYS[1], 'tokens', tokens - got, 'at', now)
redis.call('PEXPIRE', KEYS[1], 60000)
return got`)

func (r *redisBench) measureLimits(ctx context.Context) {
	l := r.store.Limits()
	r.compareFloods(ctx, versus{
		key: "redis_limits", work: "tokens taken from 32 token buckets of limits, one a call, 32 calls at a time",
		unit: "calls/s", peer: "a bucket in Lua without waits, by EVALSHA", callers: 32,
	}, func(ctx context.Context, c int) int {
		rig.Must2(l.Take(ctx, "b"+strconv.Itoa(c), 1, 1e6, 1000))
		return 1
	}, func(ctx context.Context, c int) int {
		return rig.Must(1, bareBucket.Run(ctx, r.c, []string{r.prefix + "bare" + strconv.Itoa(c)}, 1_000_000, 1000).Err())
	})
}

// measureClaims measures idempotency keys. Each key is reserved and then finished with an answer.
func (r *redisBench) measureClaims(ctx context.Context) {
	idem := r.store.Idem()
	answer := []byte(`{"id":"ntf_01M7ZWAJ45GWQCCJNG9P921B5R","status":"accepted"}`)
	r.compareFloods(ctx, versus{
		key: "redis_claims", work: "idempotency keys reserved and answered, 32 at a time",
		unit: "keys/s", peer: "SET NX EX and SET XX EX of the same keys", callers: 32,
	}, func(ctx context.Context, _ int) int {
		now := time.Now()
		k := engine.IdemKey{Caller: "shop", Route: "POST /v1/notifications", Key: strconv.FormatUint(rand.Uint64(), 36)}
		_, won := rig.Must2(idem.Reserve(ctx, engine.Reservation{Key: k, Base: notify.NewBase(now), Accepted: now.UnixMilli(), Owner: "bench", LeaseUntil: now.UnixMilli() + 10_000, Expires: now.UnixMilli() + 60_000}, now.UnixMilli()))
		if !won {
			panic(errors.New("a new random idempotency key was already reserved"))
		}
		return rig.Must(1, idem.Finish(ctx, k, 201, answer, now.UnixMilli()+60_000))
	}, func(ctx context.Context, _ int) int {
		k := r.prefix + "bare:shop:POST /v1/notifications:" + strconv.FormatUint(rand.Uint64(), 36)
		rig.Ok(r.c.SetArgs(ctx, k, noise(150), goredis.SetArgs{Mode: "NX", TTL: time.Minute}).Err())
		return rig.Must(1, r.c.SetArgs(ctx, k, append(noise(150), answer...), goredis.SetArgs{Mode: "XX", TTL: time.Minute}).Err())
	})
}

// measureQueue measures the delay queue: messages are enqueued, received and acknowledged. Each
// caller of the peer has its own queue. The peer's queue has no visibility timeout, no lanes, no
// dead letters and no waiting receivers.
func (r *redisBench) measureQueue(ctx context.Context) {
	const each = 100
	q := r.store.Queue("bench", 5)
	ours := func(ctx context.Context, _ int) int {
		ms := make([]engine.Message, each)
		for i := range ms {
			ms[i].Body = noise(64)
		}
		rig.Ok(q.Enqueue(ctx, ms))
		ds := rig.Must(q.Receive(ctx, each, time.Minute))
		receipts := make([]string, len(ds))
		for i := range ds {
			receipts[i] = ds[i].Receipt
		}
		return rig.Must(len(ds), q.Ack(ctx, receipts))
	}
	theirs := func(ctx context.Context, c int) int {
		due, bodies := r.prefix+"due"+strconv.Itoa(c), r.prefix+"bodies"+strconv.Itoa(c)
		members, fields := make([]goredis.Z, each), make([]any, 0, 2*each)
		now := float64(time.Now().UnixMicro())
		for i := range members {
			id := strconv.FormatUint(rand.Uint64(), 36)
			members[i], fields = goredis.Z{Score: now, Member: id}, append(fields, id, noise(64))
		}
		r.pipelined(ctx, func(p goredis.Pipeliner) {
			p.HSet(ctx, bodies, fields...)
			p.ZAdd(ctx, due, members...)
		})
		ids := rig.Must(r.c.ZRangeArgs(ctx, goredis.ZRangeArgs{Key: due, ByScore: true, Start: "-inf", Stop: "+inf", Count: each}).Result())
		r.pipelined(ctx, func(p goredis.Pipeliner) {
			p.ZRem(ctx, due, ids)
			p.HMGet(ctx, bodies, ids...)
		})
		return rig.Must(len(ids), r.c.HDel(ctx, bodies, ids...).Err())
	}
	r.compareFloods(ctx, versus{
		key: "redis_queue", work: "messages through the delay queue: enqueued, received, acknowledged, a hundred a call, 4 calls at a time",
		unit: "messages/s", peer: "a sorted set and a hash, pipelined", callers: 4,
	}, ours, theirs)
}
