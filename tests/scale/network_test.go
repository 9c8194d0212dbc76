package scale

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// These constants describe the modelled network between a process and a server. A call takes
// 0.5 to 3 ms. One of 1,000 answers is lost after the server has executed the request. Then the
// client fails after netTimeout, which is the default of redis.timeout.
const (
	netLeast   = 500 * time.Microsecond
	netSpread  = 2500 * time.Microsecond
	netLoss    = 0.001
	netTimeout = 300 * time.Millisecond
)

// traffic counts the requests of all processes to the servers.
type traffic struct {
	redis     atomic.Int64 // requests to Redis, including those about leases
	leases    atomic.Int64 // requests to Redis about leases of timer shards
	members   atomic.Int64 // members of heartbeat groups that Redis listed in its answers
	cassandra atomic.Int64 // requests to Cassandra, including those about timer shards
	shards    atomic.Int64 // requests to Cassandra about timer shards
}

// network connects one process to the servers.
type network struct {
	all *traffic

	mu   sync.Mutex
	rng  *rand.Rand
	dead bool // true: the process was killed, and sends and receives nothing
}

func (n *network) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead = true
}

// call sends one request to a server: it waits for the modelled time and calls request. It adds 1
// to each counter. It returns an error after netTimeout if the process is dead or the answer is
// lost.
func (n *network) call(ctx context.Context, request func(ctx context.Context) error, counters ...*atomic.Int64) error {
	n.mu.Lock()
	dead, took, lost := n.dead, netLeast+time.Duration(n.rng.Int64N(int64(netSpread))), n.rng.Float64() < netLoss
	n.mu.Unlock()
	if !dead {
		for _, c := range counters {
			c.Add(1)
		}
		if !notify.Sleep(ctx, took) {
			return ctx.Err()
		}
		err := request(ctx)
		if !lost {
			return err
		}
	}
	notify.Sleep(ctx, netTimeout)
	return notify.Unavailable("network", 0, context.DeadlineExceeded)
}

type lease struct {
	engine.Lease
	n        *network
	counters []*atomic.Int64
}

func (l lease) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (won bool, err error) {
	err = l.n.call(ctx, func(ctx context.Context) (err error) { won, err = l.Lease.Acquire(ctx, name, owner, ttl); return err }, l.counters...)
	return won && err == nil, err
}

func (l lease) Renew(ctx context.Context, name, owner string, ttl time.Duration) (is bool, err error) {
	err = l.n.call(ctx, func(ctx context.Context) (err error) { is, err = l.Lease.Renew(ctx, name, owner, ttl); return err }, l.counters...)
	return is && err == nil, err
}

func (l lease) Release(ctx context.Context, name, owner string) error {
	return l.n.call(ctx, func(ctx context.Context) error { return l.Lease.Release(ctx, name, owner) }, l.counters...)
}

type beats struct {
	engine.Heartbeats
	n *network
}

func (b beats) Beat(ctx context.Context, group, owner, value string, ttl time.Duration) (version int64, err error) {
	err = b.n.call(ctx, func(ctx context.Context) (err error) {
		version, err = b.Heartbeats.Beat(ctx, group, owner, value, ttl)
		return err
	}, &b.n.all.redis)
	return version, err
}

func (b beats) Alive(ctx context.Context, group string, known int64) (hs []engine.Heartbeat, version int64, err error) {
	err = b.n.call(ctx, func(ctx context.Context) (err error) {
		hs, version, err = b.Heartbeats.Alive(ctx, group, known)
		b.n.all.members.Add(int64(len(hs)))
		return err
	}, &b.n.all.redis)
	return hs, version, err
}

func (b beats) Leave(ctx context.Context, group, owner string) error {
	return b.n.call(ctx, func(ctx context.Context) error { return b.Heartbeats.Leave(ctx, group, owner) }, &b.n.all.redis)
}

type timers struct {
	engine.Timers
	n *network
}

func (s timers) call(ctx context.Context, request func(ctx context.Context) error) error {
	return s.n.call(ctx, request, &s.n.all.cassandra, &s.n.all.shards)
}

func (s timers) Shard(ctx context.Context, shard uint16) (st engine.ShardState, err error) {
	err = s.call(ctx, func(ctx context.Context) (err error) { st, err = s.Timers.Shard(ctx, shard); return err })
	return st, err
}

func (s timers) TakeOver(ctx context.Context, shard uint16, term uint64, owner string) (st engine.ShardState, err error) {
	err = s.call(ctx, func(ctx context.Context) (err error) {
		st, err = s.Timers.TakeOver(ctx, shard, term, owner)
		return err
	})
	return st, err
}

func (s timers) Advance(ctx context.Context, shard uint16, to engine.ShardState) error {
	return s.call(ctx, func(ctx context.Context) error { return s.Timers.Advance(ctx, shard, to) })
}

func (s timers) Closed(ctx context.Context, shard uint16) (minute int64, err error) {
	err = s.call(ctx, func(ctx context.Context) (err error) { minute, err = s.Timers.Closed(ctx, shard); return err })
	return minute, err
}

func (s timers) Buckets(ctx context.Context, shard uint16, from, to int64) (minutes []int64, err error) {
	err = s.call(ctx, func(ctx context.Context) (err error) {
		minutes, err = s.Timers.Buckets(ctx, shard, from, to)
		return err
	})
	return minutes, err
}

func (s timers) Scan(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, most int) (ts []engine.Timer, err error) {
	err = s.call(ctx, func(ctx context.Context) (err error) { ts, err = s.Timers.Scan(ctx, p, after, until, most); return err })
	return ts, err
}

func (s timers) Drop(ctx context.Context, p engine.TimerPartition) error {
	return s.call(ctx, func(ctx context.Context) error { return s.Timers.Drop(ctx, p) })
}

type meta struct {
	engine.Meta
	n *network
}

func (m meta) GetMeta(ctx context.Context, name string) (v []byte, err error) {
	err = m.n.call(ctx, func(ctx context.Context) (err error) { v, err = m.Meta.GetMeta(ctx, name); return err }, &m.n.all.cassandra)
	return v, err
}
