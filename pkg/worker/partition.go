package worker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// message is a record of the log that must be marked once.
type message = *log.Msg

// partition is a worker's view of one assigned partition. accept is called in
// log order by one goroutine; jobs run in goroutines of their own.
type partition struct {
	w      *Worker
	tp     log.TopicPartition
	stamps stamps
	ctx    context.Context // ends when the partition is gone
	soft   context.Context // ends when it is about to go: nothing new starts
	stop   context.CancelFunc
	order  *order
	budget *quota // receivers in open windows
	early  *quota // half of budget, for envelopes before their turn
	mail   *mailbox
	pace   pace
	began  time.Time // when this process got the partition
	open   bool      // Opening let it begin; of the goroutine that calls Handle
	unmet  newKeys   // accept has it
	// profiles are those of the partition's users. They are let go when ctx has ended.
	profiles atomic.Pointer[users.Holding]

	mu    sync.Mutex
	going bool                   // Drain was called: accept takes nothing more
	live  map[notify.RowKey]*job // copies of an envelope in flight wait for it
	wg    sync.WaitGroup         // accept and what it began
}

func newPartition(ctx context.Context, w *Worker, tp log.TopicPartition) *partition {
	soft, stop := context.WithCancel(ctx)
	p := &partition{w: w, tp: tp, ctx: ctx, soft: soft, stop: stop, began: time.Now(), live: map[notify.RowKey]*job{}}
	p.unmet.began = p.began
	if !p.hold() {
		p.wg.Go(func() {
			for notify.Sleep(p.soft, holdLook) && !p.hold() {
			}
		})
	}
	p.budget = newQuota(w.cfg.Ahead * w.cfg.Window)
	p.budget.claims = w.claims
	p.early = newQuota(w.cfg.Ahead / 2 * w.cfg.Window)
	if w.cfg.Role == First {
		p.order = newOrder()
	}
	if w.cfg.Lane.Channel == notify.Email && w.cfg.BatchAge > 0 {
		p.mail = newMailbox(p)
	}
	return p
}

// holdLook is how often it is looked whether a new partition is announced.
const holdLook = time.Second

// hold begins to load the profiles of the partition's users. It returns false if it is not
// announced yet which they are.
func (p *partition) hold() bool {
	spread, n := p.w.cfg.Spread(), int(p.tp.Partition)
	partitions := spread.At(time.Now())
	if n >= partitions { // added, and not in use yet
		partitions = spread.Most()
	}
	if n >= partitions {
		return false
	}
	held := p.w.cfg.Prefs.Hold(p.w.cfg.Lane.Channel, partitions, p.tp.Partition)
	p.profiles.Store(held)
	context.AfterFunc(p.ctx, held.Release)
	return true
}

// Drain implements log.Drainer: calls under way end and are settled, what
// waits for a route is parked, everything else is left for the next owner; what
// was settled is durable when it returns, so that a graceful stop repeats
// nothing. Calls that are still under way when ctx ends keep their claims.
func (p *partition) Drain(ctx context.Context) {
	p.mu.Lock()
	p.going = true
	p.mu.Unlock()
	p.stop()
	done := make(chan struct{})
	go func() {
		p.wg.Wait()
		p.mu.Lock()
		jobs := slices.Collect(maps.Values(p.live))
		p.mu.Unlock()
		for _, j := range jobs {
			// After the drain's time the calls under way were cut off, so that
			// whether the provider took them is not known: their claims stand.
			if ctx.Err() != nil {
				break
			}
			j.save()
		}
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// enter counts accept among what Drain waits for: a drain may come while rows
// are read, and must not find nothing to wait for just before jobs start.
// False: there was a drain, and what came after it is the next owner's.
func (p *partition) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.going {
		return false
	}
	p.wg.Add(1)
	return true
}

// accept takes the next records of the partition, in order.
func (p *partition) accept(msgs []message) error {
	if !p.enter() {
		return nil
	}
	defer p.wg.Done()
	jobs := make([]*job, 0, len(msgs))
	var keys []notify.RowKey // of rows that must be read
	var which []int          // of jobs
	now, held := time.Now(), time.Since(p.began)
	var windows []notify.ReceiverReader
	for _, m := range msgs {
		var env notify.Envelope
		var err error
		if windows, err = notify.DecodeCut(m.Value, &env, windows[:0], uint32(p.w.cfg.Window)); err != nil || env.Lane() != p.w.cfg.Lane {
			if errors.Is(err, notify.ErrNewer) {
				p.withdraw(jobs)
				return err // the group stops the partition at m
			}
			if err := p.w.poison(p.ctx, m, err); err != nil {
				return err
			}
			continue
		}
		j, hashes := newJob(p, m, env, windows)
		// Known as live before its row is read: a copy that finishes in between
		// would else be started again from the claim that was read.
		if p.copyOf(j) {
			continue
		}
		if p.order != nil {
			j.turn = p.order.enter(hashes, env.Count)
		}
		if !p.surelyNew(j, now, held) {
			keys, which = append(keys, j.row.Key), append(which, len(jobs))
		}
		jobs = append(jobs, j)
	}
	if len(jobs) == 0 {
		return nil
	}
	if f := p.w.cfg.Events.New; f != nil && len(jobs) > len(keys) {
		f(p.w.cfg.Lane, len(jobs)-len(keys))
	}
	rows := make([]notify.Row, len(jobs)) // zero: there is none
	if len(keys) > 0 {
		found, err := p.resume(keys)
		if err != nil {
			p.withdraw(jobs)
			return err
		}
		for i, row := range found {
			rows[which[i]] = row
		}
	}
	for i, j := range jobs {
		if rows[i].Damaged != nil {
			if err := p.w.damaged(p.ctx, j, &rows[i]); err != nil {
				return err
			}
		}
		p.start(j, &rows[i])
	}
	return nil
}

// Handle implements log.PartitionHandler.
func (p *partition) Handle(_ context.Context, msgs []*log.Msg) error {
	if o := p.w.cfg.Opening; o != nil && !p.open {
		if !o.wait(p.soft, p.tp) {
			return nil // the next owner's
		}
		p.open = true
	}
	return p.accept(msgs)
}

// withdraw forgets jobs that were not started: the group hands their records over
// again, and a turn left behind would hold up the jobs of the same users for good.
func (p *partition) withdraw(jobs []*job) {
	for _, j := range jobs {
		p.leave(j)
		p.forget(j)
	}
}

// surelyNew reports whether the job's envelope surely has no outcome row; now is the time
// of the accept, held how long this process has had the partition by then. What was
// scheduled may be published twice, before and after partitions were added, so its row is read.
func (p *partition) surelyNew(j *job, now time.Time, held time.Duration) bool {
	c := &j.env.Chunk
	if p.w.cfg.Role != First || j.row.Key != (notify.RowKey{Chunk: *c}) || j.env.NotBefore != 0 || int32(c.Partition) != p.tp.Partition {
		return false
	}
	return p.unmet.meet(c, j.msg.AfterAssign, now, held)
}

// resume reads the outcome rows of keys under the partition's tenure.
func (p *partition) resume(keys []notify.RowKey) ([]notify.Row, error) {
	t, err := p.tenure()
	if err != nil {
		return nil, err
	}
	return p.rows(keys, func(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
		return p.w.cfg.Status.Resume(ctx, t, keys)
	})
}

// rows reads outcome rows, asking again while the store is away: without them
// nothing can be started, for it might be a second time. It returns notify.ErrNewer
// if a newer release wrote one of them.
func (p *partition) rows(keys []notify.RowKey, read func(context.Context, []notify.RowKey) ([]notify.Row, error)) ([]notify.Row, error) {
	for pause := (notify.Pause{Most: time.Second}); ; {
		rows, err := read(p.ctx, keys)
		if err == nil {
			return rows, nil
		}
		if errors.Is(err, notify.ErrNewer) {
			return nil, err
		}
		if p.ctx.Err() != nil {
			return nil, p.ctx.Err()
		}
		p.w.cfg.Logger.Error("status store does not answer; lane holds", "lane", p.w.cfg.Lane.String(), "err", err)
		if !pause.Wait(p.ctx) {
			return nil, p.ctx.Err()
		}
	}
}

// copyOf makes j the live job of its key, or reports true when there is one:
// then j is done with it, for whatever comes of the first copy is durable before
// that is marked, and so before this one.
func (p *partition) copyOf(j *job) bool {
	p.mu.Lock()
	first, ok := p.live[j.row.Key]
	again := ok && first.msg == j.msg
	if !ok || again {
		p.live[j.row.Key] = j
	}
	p.mu.Unlock()
	switch {
	case again: // its acceptance failed before it was started, so the group hands it over once more
		p.leave(first)
		return false
	case !ok:
		return false
	case first.row.Digest != j.row.Digest:
		p.wg.Go(func() { p.w.mismatch(p.ctx, j, &first.row) })
	default:
		first.msg.After(j.msg)
		p.duplicate(j)
	}
	return true
}

// start runs a job, or ends it at once when it was finished before.
func (p *partition) start(j *job, row *notify.Row) {
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		if row.Key != (notify.RowKey{}) && row.Digest == j.row.Digest {
			if row.Done {
				if p.w.cfg.Order == Relaxed {
					p.leave(j)
				}
				p.duplicate(j)
				if j.handOn(p.ctx, row) == nil && j.letGo(p.ctx, row) == nil {
					p.leave(j)
					p.forget(j)
					j.msg.Done()
				}
				return
			}
			j.run(j.resume(row))
			return
		}
		if row.Key != (notify.RowKey{}) {
			p.w.mismatch(p.ctx, j, row)
			return
		}
		j.run(false)
	}()
}

func (p *partition) duplicate(j *job) {
	if f := p.w.cfg.Events.Duplicate; f != nil {
		f(p.w.cfg.Lane, int(j.env.Count))
	}
}

// leave ends the job's turn in the order.
func (p *partition) leave(j *job) {
	if j.turn != nil {
		p.order.leave(j.turn)
	}
}

func (p *partition) forget(j *job) {
	p.mu.Lock()
	if p.live[j.row.Key] == j {
		delete(p.live, j.row.Key)
	}
	p.mu.Unlock()
}

// wholly says whether the whole envelope ends without a call.
func (w *Worker) wholly(j *job, now time.Time) (notify.State, string) {
	e := &j.env
	if e.Expired(now) {
		return notify.Expired, codeExpired
	}
	if !e.Fan && w.cfg.Cancels.Cancelled(e, 0) {
		return notify.Cancelled, "cancelled"
	}
	return notify.None, ""
}

// What the cause of a derived envelope says of earlier calls, before the code.
const (
	causeCalled = "called:" // a deferral: a call was made, and not taken
	causeMaybe  = "maybe:"  // a call was made that may have been taken
	// doubtMark stands behind causeMaybe once for each wait of doubt.
	doubtMark = "~"
)

// doubts is how often the receivers of an envelope with this cause were put off by doubt.
func doubts(cause string) int {
	rest, _ := strings.CutPrefix(cause, causeMaybe)
	return len(rest) - len(strings.TrimLeft(rest, doubtMark))
}

// DeferralCode returns the code in the Cause of an envelope that a worker has put
// off: of the failure it retries, or of what it waits for.
func DeferralCode(cause string) string {
	return strings.TrimLeft(strings.TrimPrefix(strings.TrimPrefix(cause, causeCalled), causeMaybe), doubtMark)
}

const (
	codeExpired    = "expired"
	codeSuppressed = "suppressed_address"
	codePanic      = "panic"
	codeHandedOver = "handed_over"
)

// fresh holds a bulk window back while preferences or cancellations are too old
// to be believed: an opt-out or a cancel may not be known yet. It waits for the
// partition's profiles, too: to fetch those of many users one by one would take longer.
func (p *partition) fresh() bool {
	for !p.isFresh() {
		if !notify.Sleep(p.soft, 50*time.Millisecond) {
			return false
		}
	}
	return true
}

// isFresh is fresh that does not wait.
func (p *partition) isFresh() bool {
	cfg := &p.w.cfg
	return !cfg.Lane.Bulk || p.profiles.Load().Loaded() && cfg.Prefs.Fresh(time.Now()) && cfg.Cancels.Fresh(time.Now())
}

// fetch reads the profiles of those of the users that this process does not hold: their
// partition has just come and is being loaded, or they were in it while the topic had
// fewer partitions. While the store does not answer, bulk waits. In other lanes the users
// stay unknown: see lookAt.
func (p *partition) fetch(ch notify.Channel, users [][]byte) {
	for pause := (notify.Pause{Most: time.Second}); ; {
		err := p.w.cfg.Prefs.Fetch(p.ctx, ch, users)
		if err == nil || p.soft.Err() != nil {
			return
		}
		p.w.cfg.Logger.Error("profiles cannot be read", "lane", p.w.cfg.Lane.String(), "users", len(users), "err", err)
		if !p.w.cfg.Lane.Bulk || !pause.Wait(p.soft) {
			return
		}
	}
}

// mayCall reports whether an envelope may be claimed after a wait: what was shut
// meanwhile stays uncalled, but for what has expired, which no call is made for.
func (p *partition) mayCall(e *notify.Envelope) bool {
	cfg := &p.w.cfg
	return e.Expired(time.Now()) || !cfg.Gate.IsShut() && p.isFresh() && cfg.Health.ready(&cfg.Routes)
}
