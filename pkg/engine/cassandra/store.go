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

// Store is one keyspace of one cluster. Its accessors return the contracts. Any goroutine may
// use them until Close.
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

	tidyBehind time.Duration // the constant tidyBehind, except in tests
}

// Open connects to a cluster whose keyspace Migrate has created. It returns KindUnavailable
// if the cluster does not answer, and KindConflict "keyspace_not_migrated" or
// "keyspace_newer" if the keyspace is missing or of another release. The goroutines of the
// driver run until Close and reconnect to nodes that come back.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, cons: gocql.LocalQuorum, serial: gocql.LocalSerial, tidyBehind: tidyBehind}
	if cfg.Consistency == "QUORUM" {
		s.cons, s.serial = gocql.Quorum, gocql.Serial
	}
	s.locks.init()
	if cfg.LocalDC == "" {
		one := cfg
		one.NumConns = 1
		session, err := connect(ctx, one, cfg.Keyspace)
		if err != nil {
			return nil, openError(ctx, cfg, err)
		}
		err = s.cfg.learnDC(centres(session))
		session.Close()
		if err != nil {
			return nil, err
		}
	}
	s.combiner.write = func(ctx context.Context, sets [][]stmt) error { return writeSets(ctx, s, sets) }
	if s.session, err = connect(ctx, s.cfg, cfg.Keyspace); err != nil {
		return nil, openError(ctx, cfg, err)
	}
	if err := checkSchema(ctx, s); err != nil {
		s.session.Close()
		return nil, err
	}
	return s, nil
}

// centres returns the data centre of each node of a cluster.
func centres(session *gocql.Session) (dcs []string) {
	for _, h := range session.GetHosts() {
		dcs = append(dcs, h.DataCenter())
	}
	return dcs
}

// openError returns "keyspace_not_migrated" if the keyspace is missing, and otherwise the
// translated err. The driver returns the same error for a missing keyspace and for a cluster
// that does not answer.
func openError(ctx context.Context, cfg Config, err error) error {
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

// Close ends all connections and waits for the goroutines of the combiner.
func (s *Store) Close() error {
	s.session.Close()
	s.combiner.runs.Wait()
	return nil
}

// connect opens a session; with keyspace "" the session has none. If ctx ends first, connect
// returns its error, and a goroutine closes the session when it is open.
func connect(ctx context.Context, cfg Config, keyspace string) (*gocql.Session, error) {
	c := gocql.NewCluster(cfg.Hosts...)
	c.Keyspace = keyspace
	c.Timeout, c.WriteTimeout, c.ConnectTimeout = cfg.Timeout, cfg.Timeout, cmp.Or(cfg.connectTimeout, cfg.Timeout)
	c.NumConns = cfg.NumConns
	// If a replica fails, the driver tries the next one once, for statements that may run
	// twice. It never retries conditional writes.
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

// Counts is how many requests a Store has made since Open.
type Counts struct {
	Swaps       int64 // conditional writes (LWT), including repeated tries
	SerialReads int64 // reads at SERIAL
	Reads       int64 // all other reads, one for each page
	Writes      int64 // plain writes and batches of one partition
	Rows        int64 // statements in Writes, Logged and Scattered
	Bytes       int64 // approximate size of these statements
	Logged      int64 // logged batches over several partitions
	Scattered   int64 // unlogged batches over several partitions
	Apart       int64 // statements in Scattered, each of another partition
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

// Counts returns how many requests the Store has made since Open, for budgets and metrics.
func (s *Store) Counts() Counts {
	c := &s.counts
	return Counts{c.swaps.Load(), c.serial.Load(), c.reads.Load(), c.writes.Load(), c.rows.Load(), c.bytes.Load(), c.logged.Load(), c.scattered.Load(), c.apart.Load()}
}

const (
	pageSize    = 500      // rows of a page; bounds the memory of one answer
	maxParallel = 64       // requests of one call at a time
	maxBatch    = 4 << 20  // bytes of one partition's batch; a mutation may have 16 MiB
	maxLogged   = 40 << 10 // bytes of a logged batch

	// maxApart and maxApartBytes keep a batch over several partitions below the thresholds
	// at which Cassandra logs a warning (unlogged_batch_across_partitions_warn_threshold: 10,
	// batch_size_warn_threshold: 5 KiB, which counts some data that stmt.size does not).
	maxApart      = 10
	maxApartBytes = 4 << 10
)

// query returns a read, or a plain write that may run twice.
func (s *Store) query(cql string, args ...any) *gocql.Query {
	return s.session.Query(cql, args...).Consistency(s.cons).Idempotent(true)
}

// rows runs a read and calls fn once. fn calls scan for each row until scan returns false.
// The rows are read page by page.
func (s *Store) rows(ctx context.Context, fn func(scan func(...any) bool) error, cql string, args ...any) error {
	s.counts.reads.Add(1)
	return s.iterate(ctx, s.query(cql, args...), fn)
}

func (s *Store) iterate(ctx context.Context, q *gocql.Query, fn func(scan func(...any) bool) error) error {
	it := q.IterContext(ctx)
	err := fn(it.Scan)
	if cerr := it.Close(); cerr != nil {
		return translate(cerr) // for fn a failed page looks like the end of the rows
	}
	return err
}

// scanOne reads at most one row. ok is false if there is none.
func (s *Store) scanOne(ctx context.Context, q *gocql.Query, dest ...any) (ok bool, err error) {
	switch err := q.ScanContext(ctx, dest...); {
	case errors.Is(err, gocql.ErrNotFound):
		return false, nil
	case err != nil:
		return false, translate(err)
	}
	return true, nil
}

// get reads at most one row at the configured consistency. ok is false if there is none.
func (s *Store) get(ctx context.Context, cql string, args []any, dest ...any) (bool, error) {
	s.counts.reads.Add(1)
	return s.scanOne(ctx, s.query(cql, args...), dest...)
}

// getSerial is get at SERIAL: it sees every swap that returned before. It completes a swap
// that is under way, or makes it fail.
func (s *Store) getSerial(ctx context.Context, cql string, args []any, dest ...any) (bool, error) {
	s.counts.serial.Add(1)
	return s.scanOne(ctx, s.query(cql, args...).Consistency(s.serial), dest...)
}

// stmt is one statement of a batch.
type stmt struct {
	cql  string
	args []any
}

// write runs plain writes of one partition as one batch: they are stored all or none, and
// become visible together.
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

// writeAll runs plain writes of several partitions as one logged batch. Once the cluster has
// accepted the batch, all of them will be applied, even if the call returns an error. They
// do not become visible together.
func (s *Store) writeAll(ctx context.Context, at int64, stmts ...stmt) error {
	if len(stmts) < 2 {
		return s.write(ctx, at, stmts...)
	}
	s.counts.logged.Add(1)
	s.counts.rowsOf(stmts)
	return s.batch(ctx, gocql.LoggedBatch, at, stmts)
}

// scatter runs plain writes, each to another partition, with several in a request, because a
// request costs more than a row in it. The node that gets the request forwards rows that it
// does not store. After an error any of the writes may be stored.
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

// size returns the approximate size of a statement's arguments, bytes.
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

// parallel calls fn for 0 to n-1, up to maxParallel calls at a time, and returns the first
// error. After an error it begins no more calls. It waits for all calls that have begun.
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

// readEach calls get for each key as parallel does, and returns the values in the order of
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

// keyLocks keep the calls of this process from competing for one row, because a lost swap
// costs as much as a won one. Keys with the same hash share a lock.
type keyLocks struct {
	seed  maphash.Seed
	slots [256]chan struct{} // of size 1; holds a value while a caller has the lock
	off   bool               // set in tests whose goroutines stand for processes
}

func (l *keyLocks) init() {
	l.seed = maphash.MakeSeed()
	for i := range l.slots {
		l.slots[i] = make(chan struct{}, 1)
	}
}

// lock waits for the lock of a key. A caller may hold only one lock at a time.
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

// nonce returns a random number that identifies a conditional write: a row that holds it was
// written by that write.
func nonce() int64 { return rand.Int64() }

// hostPort returns the address of a node for a message.
func hostPort(h *gocql.HostInfo) string {
	return net.JoinHostPort(h.ConnectAddress().String(), itoa(h.Port()))
}

// Audit returns the audit log.
func (s *Store) Audit() *store.Audit { return store.AuditOver(partitions{s}) }

// Campaigns returns the campaigns.
func (s *Store) Campaigns() *store.Campaigns { return store.CampaignsOver(partitions{s}) }

// Cancels returns the cancellations: a log, and a row for each scope that names the valid row
// of the log.
func (s *Store) Cancels() Cancels { return Cancels{s, logOf(s, "cancels")} }

// DeadLetters returns the dead letters. Each is a row that is swapped alone. Its Ord is the
// number of its row in the log of the index, and its Seq the number in its caller's log. An
// interrupted Put is completed by the next Put of the same dead letter. It may leave numbers
// without a dead letter.
//
// Two sentences of the contract are weaker here. Move swaps each dead letter on its own, so
// an interrupted Move may have moved some. Walk reads each dead letter when its turn comes.
func (s *Store) DeadLetters() engine.DeadLetters { return deadLetters{s, logOf(s, "dead")} }

// History returns a reader of the history. Content is kept for Config.StatusTTL; older ids
// are KindGone. User lists single sends. It lists the receivers of a fan-out only if
// Config.EveryReceiver was set in the process that appended it.
func (s *Store) History(cfg HistoryConfig) *History {
	if cfg.MaxWait == 0 {
		cfg.MaxWait = 5 * time.Second
	}
	return &History{s, cfg}
}

// Holds returns the holds of strict lanes. There is one row for each lane and user; the
// worker of the user's partition reads and replaces it. The rows of an Update go into one
// logged batch: once the cluster has accepted it, all of them will be replaced, but not at
// one moment. An Update larger than a batch (40 KiB) is split. After an error any part of it
// may be stored.
func (s *Store) Holds() *store.Holds { return store.HoldsOver(holdQueues{s}) }

// Jobs returns the jobs of operators.
func (s *Store) Jobs() *store.Jobs { return store.JobsOver(partitions{s}) }

// Meta returns the small table of names and values. The last PutMeta of a name wins.
func (s *Store) Meta() engine.Meta { return store.MetaOver(partitions{s}) }

// Schedules returns the schedules. Rows are inserted and never changed. Of two rows with one
// base the first wins. So an index may have entries of a later row of the same base; readers
// of an index read the schedule as well.
func (s *Store) Schedules() engine.Schedules { return schedules{s} }

// Status returns the outcome rows. All rows of a request are in one partition. The rows of
// one call that belong to one request are stored all or none, and become visible together.
// If a call with rows of several requests returns an error, the rows of any of them may be
// stored; calling again is safe. A row expires Config.StatusTTL after its last write.
func (s *Store) Status() engine.Status { return status{s} }

// Timers returns the timers. A call stores each partition on its own; after an error any of
// them may be stored. Buckets may return minutes whose rows were all forgotten. A row expires
// Config.TimerGrace after its fire time.
func (s *Store) Timers() engine.Timers { return timers{timerRows{s, hotTimers}} }

// ColdTimers returns the timers of the far future. Drop removes a day with one delete of a
// partition.
func (s *Store) ColdTimers() engine.ColdTimers { return timerRows{s, coldTimers} }

// Triggers returns the triggers. A state row is written only by compare and swap. It is read
// without SERIAL, because a swap that has returned is committed, and a caller that acts on a
// row swaps it. Each change of state costs one swap: one to create a trigger, and two, claim
// and end, if it fires at its first attempt. Lists read indexes of plain rows. They contain
// every row that was created, and return each row as of every swap that returned before.
func (s *Store) Triggers() engine.Triggers { return triggers{s} }

// ClockOffset returns how far the clock of the node that answers is ahead of this process's.
// took is how long the query ran. The error of offset is at most took/2 and a millisecond.
func (s *Store) ClockOffset(ctx context.Context) (offset, took time.Duration, err error) {
	return askClock(ctx, s.session.Query(selectClock).Consistency(gocql.One).Idempotent(true))
}
