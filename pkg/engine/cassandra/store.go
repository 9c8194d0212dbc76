package cassandra

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/store"
)

// Store is one keyspace of one cluster. Its accessors return the contracts; all
// of them may be used from any goroutine until Close.
type Store struct {
	cfg      Config
	session  *gocql.Session
	cons     gocql.Consistency
	serial   gocql.Consistency
	clock    clock
	counts   counters
	locks    keyLocks
	combiner combiner
	buckets  bucketCache
	history  historyNext

	tidyBehind time.Duration // tidyBehind, unless a test says otherwise
}

// Open connects to a cluster whose keyspace Migrate has made. A cluster that does
// not answer is KindUnavailable; a keyspace that is missing, or of another
// release, KindConflict "keyspace_not_migrated" or "keyspace_newer". The driver's
// goroutines run until Close; it finds nodes again that come back.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, cons: gocql.LocalQuorum, serial: gocql.LocalSerial, tidyBehind: tidyBehind}
	if cfg.Consistency == "QUORUM" {
		s.cons, s.serial = gocql.Quorum, gocql.Serial
	}
	s.locks.init()
	if cfg.LocalDC == "" {
		look := cfg
		look.NumConns = 1
		session, err := connect(ctx, look, cfg.Keyspace)
		if err != nil {
			return nil, opening(ctx, cfg, err)
		}
		err = s.cfg.learnDC(centres(session))
		session.Close()
		if err != nil {
			return nil, err
		}
	}
	s.combiner.write = func(ctx context.Context, sets [][]stmt) error { return writeSets(ctx, s, sets) }
	if s.session, err = connect(ctx, s.cfg, cfg.Keyspace); err != nil {
		return nil, opening(ctx, cfg, err)
	}
	if err := checkSchema(ctx, s); err != nil {
		s.session.Close()
		return nil, err
	}
	return s, nil
}

// centres are the data centres of a cluster's nodes, one for each node.
func centres(session *gocql.Session) (dcs []string) {
	for _, h := range session.GetHosts() {
		dcs = append(dcs, h.DataCenter())
	}
	return dcs
}

// opening tells a keyspace that is missing from a cluster that is away: to the
// driver both are connections that could not be made.
func opening(ctx context.Context, cfg Config, err error) error {
	session, cerr := connect(ctx, cfg, "")
	if cerr != nil {
		return translate(cerr)
	}
	defer session.Close()
	m := migrator{session, cfg}
	if exists, cerr := m.exists(ctx); cerr == nil && !exists {
		return notMigrated(cfg.Keyspace, err)
	}
	return translate(err)
}

// Close ends all connections.
func (s *Store) Close() error {
	s.session.Close()
	s.combiner.runs.Wait()
	return nil
}

// connect opens a session; keyspace "" is none. A context that ends first closes
// what was opened meanwhile.
func connect(ctx context.Context, cfg Config, keyspace string) (*gocql.Session, error) {
	c := gocql.NewCluster(cfg.Hosts...)
	c.Keyspace = keyspace
	c.Timeout, c.WriteTimeout, c.ConnectTimeout = cfg.Timeout, cfg.Timeout, cmp.Or(cfg.connectTimeout, cfg.Timeout)
	c.NumConns = cfg.NumConns
	// One answer of a replica that is gone is asked for again at the next one, if
	// the statement may run twice; conditional ones never are.
	c.RetryPolicy = &gocql.SimpleRetryPolicy{NumRetries: 1}
	c.ReconnectionPolicy = &gocql.ConstantReconnectionPolicy{MaxRetries: 1, Interval: 100 * time.Millisecond}
	c.ReconnectInterval = time.Second
	c.PageSize = pageSize
	c.DefaultTimestamp = false
	c.MaxPreparedStmts = 1000
	c.Metadata.CacheMode = gocql.KeyspaceOnly
	c.Logger = driverLog{cfg.Logger}
	c.Dialer = cfg.dialer
	fallback := gocql.RoundRobinHostPolicy()
	if cfg.LocalDC != "" {
		fallback = gocql.DCAwareRoundRobinPolicy(cfg.LocalDC)
	}
	c.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(fallback, gocql.ShuffleReplicas())
	if cfg.Username != "" {
		c.Authenticator = gocql.PasswordAuthenticator{Username: cfg.Username, Password: cfg.Password}
	}
	conf, err := cfg.TLS.Config("cassandra.tls")
	if err != nil {
		return nil, err
	}
	if conf != nil {
		c.SslOpts = &gocql.SslOptions{Config: conf, EnableHostVerification: true}
	}
	type opened struct {
		s   *gocql.Session
		err error
	}
	done := make(chan opened, 1)
	go func() {
		s, err := c.CreateSession()
		done <- opened{s, err}
	}()
	select {
	case o := <-done:
		return o.s, o.err
	case <-ctx.Done():
		go func() {
			if o := <-done; o.s != nil {
				o.s.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// Counts is how many requests a Store made since Open.
type Counts struct {
	Swaps       int64 // conditional writes (LWT), tries included
	SerialReads int64 // reads that see every swap answered before
	Reads       int64 // all others, a page each
	Writes      int64 // plain writes and batches of one partition
	Rows        int64 // statements in Writes, Logged and Scattered
	Bytes       int64 // about what these have sent
	Logged      int64 // logged batches over several partitions
	Scattered   int64 // batches over several partitions that are not logged
	Apart       int64 // statements in Scattered, each of a partition of its own
}

type counters struct {
	swaps, serial, reads, writes, rows, bytes, logged, scattered, apart atomic.Int64
}

func (c *counters) rowsOf(stmts []stmt) {
	n := 0
	for i := range stmts {
		n += stmts[i].size()
	}
	c.rows.Add(int64(len(stmts)))
	c.bytes.Add(int64(n))
}

// Counts returns how many requests were made since Open, for budgets and metrics.
func (s *Store) Counts() Counts {
	c := &s.counts
	return Counts{c.swaps.Load(), c.serial.Load(), c.reads.Load(), c.writes.Load(), c.rows.Load(), c.bytes.Load(), c.logged.Load(), c.scattered.Load(), c.apart.Load()}
}

const (
	pageSize    = 500     // rows of a page: bounds what one answer holds
	maxParallel = 64      // requests of one call at a time
	maxBatch    = 4 << 20 // bytes of one partition's batch; a mutation may have 16 MiB
	maxLogged   = 40 << 10

	// maxApart and maxApartBytes are what Cassandra takes without a warning in a batch of
	// several partitions (unlogged_batch_across_partitions_warn_threshold,
	// batch_size_warn_threshold: 10 and 5 KiB of data, of which some is not in our sizes).
	maxApart      = 10
	maxApartBytes = 4 << 10
)

// query is a read, or a plain write that may run twice.
func (s *Store) query(cql string, args ...any) *gocql.Query {
	return s.session.Query(cql, args...).Consistency(s.cons).Idempotent(true)
}

// rows calls fn for each row of a read, page by page; scan fills the destinations
// that fn reads.
func (s *Store) rows(ctx context.Context, fn func(scan func(...any) bool) error, cql string, args ...any) error {
	s.counts.reads.Add(1)
	return s.iterate(ctx, s.query(cql, args...), fn)
}

func (s *Store) iterate(ctx context.Context, q *gocql.Query, fn func(scan func(...any) bool) error) error {
	it := q.IterContext(ctx)
	err := fn(it.Scan)
	if cerr := it.Close(); cerr != nil {
		return translate(cerr) // a page that failed looks like the end to fn
	}
	return err
}

// one reads at most one row; ok is false where there is none.
func (s *Store) one(ctx context.Context, q *gocql.Query, dest ...any) (ok bool, err error) {
	switch err := q.ScanContext(ctx, dest...); {
	case errors.Is(err, gocql.ErrNotFound):
		return false, nil
	case err != nil:
		return false, translate(err)
	}
	return true, nil
}

// get is one of a plain read.
func (s *Store) get(ctx context.Context, cql string, args []any, dest ...any) (bool, error) {
	s.counts.reads.Add(1)
	return s.one(ctx, s.query(cql, args...), dest...)
}

// getSerial is one that sees every swap answered before, and settles those that
// are under way.
func (s *Store) getSerial(ctx context.Context, cql string, args []any, dest ...any) (bool, error) {
	s.counts.serial.Add(1)
	return s.one(ctx, s.query(cql, args...).Consistency(s.serial), dest...)
}

// stmt is one statement of a batch.
type stmt struct {
	cql  string
	args []any
}

// write runs plain writes of one partition as one: all or none, seen together.
func (s *Store) write(ctx context.Context, at int64, stmts ...stmt) error {
	if len(stmts) == 0 {
		return nil
	}
	s.counts.writes.Add(1)
	s.counts.rowsOf(stmts)
	if len(stmts) == 1 {
		return translate(s.query(stmts[0].cql, stmts[0].args...).WithTimestamp(at).ExecContext(ctx))
	}
	return s.batch(ctx, gocql.UnloggedBatch, at, stmts)
}

// writeAll runs plain writes of several partitions: once they were accepted all
// of them are done, however the call ends; they are not seen together.
func (s *Store) writeAll(ctx context.Context, at int64, stmts ...stmt) error {
	if len(stmts) < 2 {
		return s.write(ctx, at, stmts...)
	}
	s.counts.logged.Add(1)
	s.counts.rowsOf(stmts)
	return s.batch(ctx, gocql.LoggedBatch, at, stmts)
}

// scatter runs plain writes of a partition each, several to a request: a request costs more
// than a row in it. The node that it is sent to hands on what is not its own. After an error
// any of them may be done.
func (s *Store) scatter(ctx context.Context, stmts []stmt) error {
	var batches [][]stmt
	for from, i, size := 0, 0, 0; i < len(stmts); i++ {
		n := stmts[i].size()
		if i > from && (i-from == maxApart || size+n > maxApartBytes) {
			from, size = i, 0
		}
		if size += n; i == from {
			batches = append(batches, nil)
		}
		batches[len(batches)-1] = stmts[from : i+1]
	}
	return parallel(len(batches), func(i int) error {
		b := batches[i]
		if len(b) == 1 {
			return s.write(ctx, s.clock.now(), b[0])
		}
		s.counts.scattered.Add(1)
		s.counts.apart.Add(int64(len(b)))
		s.counts.rowsOf(b)
		return s.batch(ctx, gocql.UnloggedBatch, s.clock.now(), b)
	})
}

func (s *Store) batch(ctx context.Context, kind gocql.BatchType, at int64, stmts []stmt) error {
	b := s.session.Batch(kind).Consistency(s.cons).WithTimestamp(at)
	for _, x := range stmts {
		b.Entries = append(b.Entries, gocql.BatchEntry{Stmt: x.cql, Args: x.args, Idempotent: true})
	}
	return translate(b.ExecContext(ctx))
}

// size is about what a statement sends.
func (x *stmt) size() (n int) {
	for _, a := range x.args {
		switch v := a.(type) {
		case []byte:
			n += len(v)
		case string:
			n += len(v)
		}
		n += 12
	}
	return n
}

// parallel calls fn for 0..n-1, some at a time, and returns the first error. After
// an error it begins no more.
func parallel(n int, fn func(i int) error) error {
	if n == 1 {
		return fn(0)
	}
	var (
		wg    sync.WaitGroup
		next  atomic.Int64
		first atomic.Pointer[error]
	)
	for range min(n, maxParallel) {
		wg.Go(func() {
			for first.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := fn(i); err != nil {
					first.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
}

// readEach calls get for each key, some at a time, and returns the values in the order of
// keys.
func readEach[K, V any](keys []K, get func(K) (V, error)) ([]V, error) {
	out := make([]V, len(keys))
	err := parallel(len(keys), func(i int) (err error) {
		out[i], err = get(keys[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// keyLocks keep the calls of this process from competing for one row: losers of
// a swap cost as much as winners.
type keyLocks struct {
	seed  maphash.Seed
	slots [256]chan struct{}
	off   bool // in a test, whose goroutines compete as processes do
}

func (l *keyLocks) init() {
	l.seed = maphash.MakeSeed()
	for i := range l.slots {
		l.slots[i] = make(chan struct{}, 1)
	}
}

// lock waits for a key's turn. A caller holds one at a time.
func (l *keyLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	if l.off {
		return func() {}, nil
	}
	slot := l.slots[maphash.String(l.seed, key)%uint64(len(l.slots))]
	select {
	case slot <- struct{}{}:
		return func() { <-slot }, nil
	case <-ctx.Done():
		return nil, translate(ctx.Err())
	}
}

// nonce names a conditional write, so that its row can be told from another's.
func nonce() int64 { return rand.Int64() }

// hostPort is how doctor names a node.
func hostPort(h *gocql.HostInfo) string {
	return net.JoinHostPort(h.ConnectAddress().String(), itoa(h.Port()))
}

// Audit returns the audit log.
func (s *Store) Audit() *store.Audit { return store.AuditOver(partitions{s}) }

// Campaigns returns the campaigns.
func (s *Store) Campaigns() *store.Campaigns { return store.CampaignsOver(partitions{s}) }

// Cancels returns the contract of cancellations: a log, and a row for each scope
// that says which of the log's rows about it counts.
func (s *Store) Cancels() Cancels { return Cancels{s, logOf(s, "cancels")} }

// DeadLetters returns the contract of what failed for good. A letter is a row,
// swapped alone; its Ord is the number of its row in the log of all, its Seq that
// in its caller's log. A Put that was interrupted is finished by the next one of
// the same letter, which may leave numbers that no letter has.
//
// Two sentences of the contract are weaker here: Move swaps each letter for
// itself, so an interrupted one may have moved some; and Walk sees each letter as
// it is when its turn comes.
func (s *Store) DeadLetters() engine.DeadLetters { return deadLetters{s, logOf(s, "dead")} }

// History returns the reader of who got what. Content is kept for
// Config.StatusTTL; older ids are KindGone. User lists single sends, and each
// receiver of a fan-out only if Config.EveryReceiver was set where it was
// appended.
func (s *Store) History(cfg HistoryConfig) *History {
	if cfg.MaxWait == 0 {
		cfg.MaxWait = 5 * time.Second
	}
	return &History{s, cfg}
}

// Holds returns the holds of strict lanes: one row per lane and user, which
// the worker of the user's partition reads and replaces. The rows of an Update
// go into one logged batch: once the cluster took it all of them are replaced,
// not at one moment. An Update of more than a batch may hold (40 KiB) is cut, and
// an error leaves it open which parts were stored.
func (s *Store) Holds() *store.Holds { return store.HoldsOver(holdQueues{s}) }

// Jobs returns the operations jobs.
func (s *Store) Jobs() *store.Jobs { return store.JobsOver(partitions{s}) }

// Meta returns the contract of the small table of names and values. The last PutMeta of
// a name wins.
func (s *Store) Meta() engine.Meta { return store.MetaOver(partitions{s}) }

// Schedules returns the contract of scheduled requests. Rows are inserted and
// never changed; of two of one base the first counts. So the indexes may name
// what a later row of the same base said: who reads them looks at the schedule.
func (s *Store) Schedules() engine.Schedules { return schedules{s} }

// Status returns the contract of outcome rows. The rows of a request are one
// partition: those of one call are stored all or none by request, and seen
// together. Of a call about several requests an error leaves it open which of
// them are stored; calling again is safe. Rows go Config.StatusTTL after their
// last write.
func (s *Store) Status() engine.Status { return status{s} }

// Timers returns the contract of timers. Those of one call are stored each
// partition for itself; an error leaves it open which. Buckets may return minutes
// whose rows were all forgotten. Rows go Config.TimerGrace behind their time.
func (s *Store) Timers() engine.Timers { return timers{timerRows{s, hotTimers}} }

// ColdTimers returns the contract of timers far ahead. A day goes with one
// partition delete.
func (s *Store) ColdTimers() engine.ColdTimers { return timerRows{s, coldTimers} }

// Triggers returns the contract of triggers. A state row is written by compare
// and swap alone. It is read without SERIAL: a swap that was answered has been committed, and
// a caller that acts on a row swaps it. A trigger's life costs a swap for each
// change of state: one to create it, and two, claim and end, for one that fires
// at its first attempt. Lists follow indexes that are plain rows: they hold
// every row that was created, and each row they return is as of every swap
// answered before.
func (s *Store) Triggers() engine.Triggers { return triggers{s} }

// ClockOffset returns how far the clock of the node that answers is ahead of this
// process's. It is wrong by at most half of how long the question took, which it returns
// too, and a millisecond.
func (s *Store) ClockOffset(ctx context.Context) (offset, took time.Duration, err error) {
	return askClock(ctx, s.session.Query(selectClock).Consistency(gocql.One).Idempotent(true))
}
