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

// Store is one keyspace of one cluster. Its methods return implementations of the
// contracts. Any goroutine may use these implementations until Close.
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

// Open connects to a cluster in which Migrate has created the keyspace. It returns KindUnavailable
// if the cluster does not answer. It returns KindConflict "keyspace_not_migrated" if the keyspace
// is missing or lacks tables of this release. It returns KindConflict "keyspace_newer" if a newer
// release has migrated the keyspace and this build does not work with its tables. The driver
// reconnects to nodes that come back, until Close.
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

// openError returns "keyspace_not_migrated" if the keyspace is missing. Otherwise it
// returns the translated err. It looks for the keyspace because the driver returns the same
// error for a missing keyspace and for a cluster that does not answer.
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

// Close closes all connections and waits until the goroutines of the combiner have ended.
func (s *Store) Close() error {
	s.session.Close()
	s.combiner.runs.Wait()
	return nil
}

// connect opens a session. If keyspace is "", the session has no keyspace. If ctx ends
// before the session is open, connect returns the error of ctx, and a goroutine closes the
// session later.
func connect(ctx context.Context, cfg Config, keyspace string) (*gocql.Session, error) {
	c := gocql.NewCluster(cfg.Hosts...)
	c.Keyspace = keyspace
	c.Timeout, c.WriteTimeout, c.ConnectTimeout = cfg.Timeout, cfg.Timeout, cmp.Or(cfg.connectTimeout, cfg.Timeout)
	c.NumConns = cfg.NumConns
	// If a replica fails, the driver tries one other replica. It does so only for
	// statements that may run twice, and never for conditional writes.
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

// Counts contains how many requests a Store has made since Open.
type Counts struct {
	Swaps       int64 // conditional writes (LWT), including repeated tries
	SerialReads int64 // reads with the consistency SERIAL
	Reads       int64 // all other read queries; a query counts once, however many pages it reads
	Writes      int64 // plain writes and batches of one partition
	Rows        int64 // statements in Writes, Logged and Scattered
	Bytes       int64 // approximate size of these statements
	Logged      int64 // logged batches over several partitions
	Scattered   int64 // unlogged batches over several partitions
	Apart       int64 // statements in Scattered, each for a different partition
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
	pageSize    = 500      // rows of a page; limits the memory of one answer
	maxParallel = 64       // concurrent requests of one call
	maxBatch    = 4 << 20  // bytes of one partition's batch; a mutation may have 16 MiB
	maxLogged   = 40 << 10 // bytes of a logged batch

	// A batch over several partitions has at most maxApart statements and maxApartBytes
	// bytes. With these limits Cassandra does not log a warning
	// (unlogged_batch_across_partitions_warn_threshold: 10, batch_size_warn_threshold: 5
	// KiB). maxApartBytes is less than 5 KiB because Cassandra counts some data that
	// stmt.size does not count.
	maxApart      = 10
	maxApartBytes = 4 << 10
)

// query returns a query for a read or for a plain write. The driver may run it twice.
func (s *Store) query(cql string, args ...any) *gocql.Query {
	return s.session.Query(cql, args...).Consistency(s.cons).Idempotent(true)
}

// rows runs a read and calls fn once. The function fn must call its argument scan for each
// row, until scan returns false. The rows are read page by page.
func (s *Store) rows(ctx context.Context, fn func(scan func(...any) bool) error, cql string, args ...any) error {
	s.counts.reads.Add(1)
	return s.iterate(ctx, s.query(cql, args...), fn)
}

func (s *Store) iterate(ctx context.Context, q *gocql.Query, fn func(scan func(...any) bool) error) error {
	it := q.IterContext(ctx)
	err := fn(it.Scan)
	if cerr := it.Close(); cerr != nil {
		return translate(cerr) // fn cannot tell a failed page from the end of the rows
	}
	return err
}

// scanOne reads at most one row. The result ok is false if the query returns no row.
func (s *Store) scanOne(ctx context.Context, q *gocql.Query, dest ...any) (ok bool, err error) {
	switch err := q.ScanContext(ctx, dest...); {
	case errors.Is(err, gocql.ErrNotFound):
		return false, nil
	case err != nil:
		return false, translate(err)
	}
	return true, nil
}

// get reads at most one row at the configured consistency. It returns false if the query
// returns no row.
func (s *Store) get(ctx context.Context, cql string, args []any, dest ...any) (bool, error) {
	s.counts.reads.Add(1)
	return s.scanOne(ctx, s.query(cql, args...), dest...)
}

// getSerial does what get does, but reads with the consistency SERIAL, so it sees every swap that
// returned before the call. If a swap is still running, the read completes it or makes it fail.
func (s *Store) getSerial(ctx context.Context, cql string, args []any, dest ...any) (bool, error) {
	s.counts.serial.Add(1)
	return s.scanOne(ctx, s.query(cql, args...).Consistency(s.serial), dest...)
}

// stmt is one statement of a batch.
type stmt struct {
	cql  string
	args []any
}

// write runs plain writes of one partition as one batch. The parameter at is the timestamp of the
// writes. Either all of them are stored or none, and they become visible together.
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

// writeAll runs plain writes of several partitions as one logged batch. When the cluster
// has accepted the batch, it will apply all writes, even if writeAll returns an error. The
// writes do not become visible together.
func (s *Store) writeAll(ctx context.Context, at int64, stmts ...stmt) error {
	if len(stmts) < 2 {
		return s.write(ctx, at, stmts...)
	}
	s.counts.logged.Add(1)
	s.counts.rowsOf(stmts)
	return s.batch(ctx, gocql.LoggedBatch, at, stmts)
}

// scatter runs plain writes that each go to a different partition. It sends several writes
// in one request, because a request costs more than a row in it. The node that gets the
// request sends rows that it does not store to other nodes. After an error any of the
// writes may be stored.
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

// size returns the approximate size of a statement's arguments, in bytes.
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

// parallel calls fn for 0 to n-1, up to maxParallel calls at the same time, and returns the
// first error. After an error it starts no more calls. It waits until all started calls
// have ended.
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

// readEach calls the function get for each key, several keys at the same time (see
// parallel), and returns the values in the order of the keys.
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

// keyLocks has locks for keys of rows. With them, only one call of this process swaps a row at a
// time. Without them, many swaps would not be applied, and such a swap costs as much as an applied
// one. Keys with the same hash share a lock.
type keyLocks struct {
	seed  maphash.Seed
	slots [256]chan struct{} // of size 1; contains a value while a caller has the lock
	off   bool               // true in tests in which each goroutine represents a process
}

func (l *keyLocks) init() {
	l.seed = maphash.MakeSeed()
	for i := range l.slots {
		l.slots[i] = make(chan struct{}, 1)
	}
}

// lock waits for the lock of a key. A caller may have only one lock at a time.
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

// nonce returns a random number that identifies a conditional write. The write stores the
// number in the row, so the row shows which write has written it.
func nonce() int64 { return rand.Int64() }

// hostPort returns the address of a node as text for a message.
func hostPort(h *gocql.HostInfo) string {
	return net.JoinHostPort(h.ConnectAddress().String(), itoa(h.Port()))
}

// Audit returns the audit log.
func (s *Store) Audit() *store.Audit { return store.AuditOver(partitions{s}) }

// Campaigns returns the campaigns.
func (s *Store) Campaigns() *store.Campaigns { return store.CampaignsOver(partitions{s}) }

// Cancels returns the cancellations. They are stored in a log. In addition, each scope has
// a row with the number of its valid row in the log.
func (s *Store) Cancels() Cancels { return Cancels{s, logOf(s, "cancels")} }

// DeadLetters returns the dead letters. Each dead letter is one row that is swapped
// separately. Ord is its number in the log of all dead letters, and Seq is its number in the
// log of its caller. If a Put is interrupted, the next Put of the same dead letter completes
// it. An interrupted Put may leave numbers that no dead letter has.
//
// This engine promises less than an engine of one process in two points. Move swaps each
// dead letter separately, so an interrupted Move may have moved some dead letters. Walk
// reads each dead letter at a different moment.
func (s *Store) DeadLetters() engine.DeadLetters { return deadLetters{s, logOf(s, "dead")} }

// History returns a reader of the history. Content is kept for Config.StatusTTL. For an older id
// the reader returns KindGone. The method User of the reader lists single sends. It lists a fan-out
// only if Config.EveryReceiver was true in the process that appended the fan-out to the history.
func (s *Store) History(cfg HistoryConfig) *History {
	if cfg.MaxWait == 0 {
		cfg.MaxWait = 5 * time.Second
	}
	return &History{s, cfg}
}

// Holds returns the holds of strict lanes. Each user has one row in each lane. Only the worker
// of the user's partition reads and replaces that row. The rows of an Update are one logged
// batch. When the cluster has accepted the batch, it will replace all rows, but not at the
// same moment. An Update that is larger than a batch (40 KiB) is split. After an error any
// of its rows may be stored.
func (s *Store) Holds() *store.Holds { return store.HoldsOver(holdQueues{s}) }

// Jobs returns the jobs of operators.
func (s *Store) Jobs() *store.Jobs { return store.JobsOver(partitions{s}) }

// Meta returns the small table of names and values. The last PutMeta of a name wins.
func (s *Store) Meta() engine.Meta { return store.MetaOver(partitions{s}) }

// Schedules returns the schedules. Rows are inserted and never changed. If two rows have
// the same base, the first row is valid. So a list may have an entry that belongs to the
// later row. A reader of a list therefore also reads the schedule.
func (s *Store) Schedules() engine.Schedules { return schedules{s} }

// Status returns the outcome rows. All rows of a request are in one partition. Put stores
// all rows of a request or none, and these rows become visible together. If a Put with rows
// of several requests returns an error, the rows of any of these requests may be stored.
// Calling Put again is safe. A row expires Config.StatusTTL after its last write.
func (s *Store) Status() engine.Status { return status{s} }

// Timers returns the timers. Put stores the rows of each partition separately. After an
// error the rows of any partition may be stored. Buckets may return a minute from which
// ForgetTimers has removed all rows. A row expires Config.TimerGrace after its fire time.
func (s *Store) Timers() engine.Timers { return timers{timerRows{s, hotTimers}} }

// ColdTimers returns the timers of the far future. Drop removes a day with one delete of a
// partition.
func (s *Store) ColdTimers() engine.ColdTimers { return timerRows{s, coldTimers} }

// Triggers returns the triggers. Each trigger has one row with its state, the state row. This row
// is written only by compare and swap. It is read without SERIAL. Such a read is safe because a
// swap that has returned is committed, and because a caller that acts on a row must swap the row.
// Each change of state costs one swap. A trigger costs one swap when it is created. If it fires at
// its first attempt, it costs two more swaps, one for the claim and one for the end. List reads
// the ids in a list, which are plain rows, and then the state rows. It includes every row that was
// created, with every swap that returned before the call.
func (s *Store) Triggers() engine.Triggers { return triggers{s} }

// ClockOffset reads the clock of one node. The result offset is the time of that clock
// minus the time of this process's clock, and roundTrip is how long the query ran. The
// true offset differs from offset by at most roundTrip/2 plus a millisecond.
func (s *Store) ClockOffset(ctx context.Context) (offset, roundTrip time.Duration, err error) {
	return askClock(ctx, s.session.Query(selectClock).Consistency(gocql.One).Idempotent(true))
}
