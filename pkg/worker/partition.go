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

// message is a record of the log. The worker must mark it as done exactly once.
type message = *log.Msg

// partition is one assigned partition of a worker. One goroutine calls accept, in the order of the
// log. Each job runs in a goroutine of its own.
type partition struct {
	w          *Worker
	tp         log.TopicPartition
	stamps     rowStamps
	ctx        context.Context    // ends when the partition is gone; nothing may be written after that
	untilDrain context.Context    // ends when a drain begins; nothing new is started after that
	beginDrain context.CancelFunc // ends untilDrain
	order      *userOrder
	budget     *quota   // limits the receivers in open windows
	early      *quota   // half of the size of budget; limits the receivers in windows whose turn has not come
	mailbox    *mailbox // nil: mails are not collected
	pace       campaignPace
	assignedAt time.Time // when this process got the partition
	open       bool      // the worker may begin with the partition, see Opening; only the goroutine that calls Handle uses open
	newKeys    newKeys   // only the goroutine that calls accept uses newKeys
	// profiles contains the profiles of the partition's users. It is released when ctx has ended.
	profiles atomic.Pointer[users.Holding]

	mu       sync.Mutex             // guards the fields below
	draining bool                   // Drain was called: accept starts nothing more
	liveJobs map[notify.RowKey]*job // jobs in flight; later copies of their envelopes wait for them
	wg       sync.WaitGroup         // accept, and all goroutines that it starts
}

func newPartition(ctx context.Context, w *Worker, tp log.TopicPartition) *partition {
	untilDrain, beginDrain := context.WithCancel(ctx)
	p := &partition{w: w, tp: tp, ctx: ctx, untilDrain: untilDrain, beginDrain: beginDrain, assignedAt: time.Now(), liveJobs: map[notify.RowKey]*job{}}
	p.newKeys.began = p.assignedAt
	if !p.loadProfiles() {
		p.wg.Go(func() {
			for notify.Sleep(p.untilDrain, profilesRetry) && !p.loadProfiles() {
			}
		})
	}
	p.budget = newQuota(w.cfg.Ahead * w.cfg.Window)
	p.budget.shared = w.openReceivers
	p.early = newQuota(w.cfg.Ahead / 2 * w.cfg.Window)
	if w.cfg.Role == First {
		p.order = newUserOrder()
	}
	if w.cfg.Lane.Channel == notify.Email && w.cfg.BatchAge > 0 {
		p.mailbox = newMailbox(p)
	}
	return p
}

// profilesRetry is the time between two calls of loadProfiles while the partition is not announced.
const profilesRetry = time.Second

// loadProfiles begins to load the profiles of the partition's users. It returns false if the
// partition is not announced yet, because then nothing shows which users it has.
func (p *partition) loadProfiles() bool {
	spread, n := p.w.cfg.Spread(), int(p.tp.Partition)
	partitions := spread.PartsAt(time.Now())
	if n >= partitions { // the partition was added and is not used yet
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

// Drain implements log.Drainer. It waits for calls in flight and settles their receivers. Receivers
// that wait for a route go to the timer store. The next owner does everything else. When Drain
// returns, all outcomes are durable, so a graceful stop repeats nothing. But if ctx ends first,
// receivers whose calls are still in flight stay claimed.
func (p *partition) Drain(ctx context.Context) {
	p.mu.Lock()
	p.draining = true
	p.mu.Unlock()
	p.beginDrain()
	done := make(chan struct{})
	go func() {
		p.wg.Wait()
		p.mu.Lock()
		jobs := slices.Collect(maps.Values(p.liveJobs))
		p.mu.Unlock()
		for _, j := range jobs {
			// The time limit of the drain has ended. The providers may have processed the calls
			// that were cut off, so the claims must stay.
			if ctx.Err() != nil {
				break
			}
			j.takeBackClaims()
		}
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// beginAccept makes Drain wait for the running call of accept. Otherwise Drain could return while
// accept reads rows, and accept would then start jobs. beginAccept returns false if Drain was
// called. Then the next owner receives the records.
func (p *partition) beginAccept() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining {
		return false
	}
	p.wg.Add(1)
	return true
}

// accept makes jobs of the next records of the partition, in order, and starts the jobs.
func (p *partition) accept(msgs []message) error {
	if !p.beginAccept() {
		return nil
	}
	defer p.wg.Done()
	jobs := make([]*job, 0, len(msgs))
	var keys []notify.RowKey // keys of the rows to read
	var which []int          // by index in keys: index in jobs
	now, assignedFor := time.Now(), time.Since(p.assignedAt)
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
		// Make the job live first, then read its row. Otherwise a copy of the job could finish
		// after the read, and this job would start again from the old row.
		if p.joinLive(j) {
			continue
		}
		if p.order != nil {
			j.turn = p.order.enter(hashes, env.Count)
		}
		if !p.surelyNew(j, now, assignedFor) {
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
	rows := make([]notify.Row, len(jobs)) // zero: no row
	if len(keys) > 0 {
		found, err := p.resumeRows(keys)
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
			if err := p.w.replaceDamaged(p.ctx, j, &rows[i]); err != nil {
				return err
			}
		}
		p.startJob(j, &rows[i])
	}
	return nil
}

// Handle implements log.PartitionHandler.
func (p *partition) Handle(_ context.Context, msgs []*log.Msg) error {
	if o := p.w.cfg.Opening; o != nil && !p.open {
		if !o.waitToBegin(p.untilDrain, p.tp) {
			return nil // left to the next owner
		}
		p.open = true
	}
	return p.accept(msgs)
}

// withdraw removes jobs that were not started; accept gets their records again later. It also ends
// their turns in the order. Otherwise later jobs of the same users would wait forever.
func (p *partition) withdraw(jobs []*job) {
	for _, j := range jobs {
		p.leaveOrder(j)
		p.forgetJob(j)
	}
}

// surelyNew returns true if the job's envelope certainly has no outcome row. The other parameters
// are the time at which accept began, and how long this process has had the partition.
//
// It always returns false for a scheduled chunk, because that chunk may be published twice: before
// and after partitions were added to the topic.
func (p *partition) surelyNew(j *job, now time.Time, assignedFor time.Duration) bool {
	c := &j.env.Chunk
	if p.w.cfg.Role != First || j.row.Key != (notify.RowKey{Chunk: *c}) || j.env.NotBefore != 0 || int32(c.Partition) != p.tp.Partition {
		return false
	}
	return p.newKeys.noteIsNew(c, j.msg.AfterAssign, now, assignedFor)
}

// resumeRows reads the outcome rows of the given keys and makes this partition's tenure their
// owner.
func (p *partition) resumeRows(keys []notify.RowKey) ([]notify.Row, error) {
	t, err := p.currentTenure()
	if err != nil {
		return nil, err
	}
	return p.readRows(keys, func(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
		return p.w.cfg.Status.Resume(ctx, t, keys)
	})
}

// readRows reads the outcome rows of the given keys with the function query. It repeats the query
// while the store fails, because no job may start without its row: the receivers may have been
// called before. It returns notify.ErrNewer if a newer release wrote one of the rows.
func (p *partition) readRows(keys []notify.RowKey, query func(context.Context, []notify.RowKey) ([]notify.Row, error)) ([]notify.Row, error) {
	for pause := (notify.Pause{Most: time.Second}); ; {
		rows, err := query(p.ctx, keys)
		if err == nil {
			return rows, nil
		}
		if errors.Is(err, notify.ErrNewer) {
			return nil, err
		}
		if p.ctx.Err() != nil {
			return nil, p.ctx.Err()
		}
		p.w.cfg.Logger.Error("cannot read from the status store; the lane waits, will try again", "lane", p.w.cfg.Lane.String(), "err", err)
		if !pause.Wait(p.ctx) {
			return nil, p.ctx.Err()
		}
	}
}

// joinLive normally makes j the live job of its key and returns false. If the key has a live job of
// another record already, joinLive returns true, and the caller does nothing more for j. If both
// jobs have the same receivers, j is a copy: its record is marked as done after the record of the
// live job. If the receivers differ, joinLive starts the method mismatch for j.
func (p *partition) joinLive(j *job) bool {
	p.mu.Lock()
	first, ok := p.liveJobs[j.row.Key]
	again := ok && first.msg == j.msg
	if !ok || again {
		p.liveJobs[j.row.Key] = j
	}
	p.mu.Unlock()
	switch {
	case again: // the same record: an earlier accept failed before it started the job
		p.leaveOrder(first)
		return false
	case !ok:
		return false
	case first.row.Digest != j.row.Digest:
		p.wg.Go(func() { p.w.mismatch(p.ctx, j, &first.row) })
	default:
		first.msg.ChainDone(j.msg)
		p.reportDuplicate(j)
	}
	return true
}

// startJob runs a job in a goroutine. The parameter row is the outcome row of the job's key, or the
// zero row. If the row is finished, startJob only does the work that follows a finished row (see
// handOn).
func (p *partition) startJob(j *job, row *notify.Row) {
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		if row.Key != (notify.RowKey{}) && row.Digest == j.row.Digest {
			if row.Done {
				if p.w.cfg.Order == Relaxed {
					p.leaveOrder(j)
				}
				p.reportDuplicate(j)
				if j.handOn(p.ctx, row) == nil && j.dropStaleHolds(p.ctx, row) == nil {
					p.leaveOrder(j)
					p.forgetJob(j)
					j.msg.Done()
				}
				return
			}
			j.handOutWindows(j.resumeFromRow(row))
			return
		}
		if row.Key != (notify.RowKey{}) {
			p.w.mismatch(p.ctx, j, row)
			return
		}
		j.handOutWindows(false)
	}()
}

func (p *partition) reportDuplicate(j *job) {
	if f := p.w.cfg.Events.Duplicate; f != nil {
		f(p.w.cfg.Lane, int(j.env.Count))
	}
}

// leaveOrder ends the job's turn in the order.
func (p *partition) leaveOrder(j *job) {
	if j.turn != nil {
		p.order.leave(j.turn)
	}
}

// forgetJob removes a job from liveJobs. A later copy of its envelope will then read the row.
func (p *partition) forgetJob(j *job) {
	p.mu.Lock()
	if p.liveJobs[j.row.Key] == j {
		delete(p.liveJobs, j.row.Key)
	}
	p.mu.Unlock()
}

// endsWhole returns the state and code with which the whole envelope ends without a call. State
// None means that the envelope does not end without a call.
func (w *Worker) endsWhole(j *job, now time.Time) (notify.State, string) {
	e := &j.env
	if e.Expired(now) {
		return notify.Expired, codeExpired
	}
	if !e.FanOut && w.cfg.Cancels.Cancelled(e, 0) {
		return notify.Cancelled, "cancelled"
	}
	return notify.None, ""
}

// Prefixes of the code in the cause of a derived envelope. They say which calls were made before.
const (
	causeCalled = "called:" // calls were made, and the provider did not process them
	causeMaybe  = "maybe:"  // the provider may have processed a call
	// doubtMark follows causeMaybe, once for each time that parkAmbiguous has parked the receivers.
	doubtMark = "~"
)

// doubtCount returns how often parkAmbiguous has parked the receivers of an envelope with this
// cause.
func doubtCount(cause string) int {
	rest, _ := strings.CutPrefix(cause, causeMaybe)
	return len(rest) - len(strings.TrimLeft(rest, doubtMark))
}

// DeferralCode returns the code in the Cause of a deferred envelope. The code names the failure
// after which the worker tries again, or the reason for the wait.
func DeferralCode(cause string) string {
	return strings.TrimLeft(strings.TrimPrefix(strings.TrimPrefix(cause, causeCalled), causeMaybe), doubtMark)
}

const (
	codeExpired    = "expired"
	codeSuppressed = "suppressed_address"
	codePanic      = "panic"
	codeHandedOver = "handed_over"
)

// waitFresh delays a bulk window while preferences or cancellations are too old, because a recent
// opt-out or cancellation may be missing. It also waits until the partition's profiles are loaded;
// to fetch the profiles of many users one by one would take longer. It returns false if the
// partition is being drained.
func (p *partition) waitFresh() bool {
	for !p.isFresh() {
		if !notify.Sleep(p.untilDrain, 50*time.Millisecond) {
			return false
		}
	}
	return true
}

// isFresh returns true if waitFresh has nothing to wait for.
func (p *partition) isFresh() bool {
	cfg := &p.w.cfg
	return !cfg.Lane.Bulk || p.profiles.Load().Loaded() && cfg.Prefs.Fresh(time.Now()) && cfg.Cancels.Fresh(time.Now())
}

// fetchProfiles reads the profiles of users that this process does not have in memory. There are
// two cases: the profiles of a new partition are still being loaded, or the users were in this
// partition while the topic had fewer partitions. If the store fails, a bulk lane waits. In other
// lanes the users stay unknown; see decideReceiver.
func (p *partition) fetchProfiles(ch notify.Channel, users [][]byte) {
	for pause := (notify.Pause{Most: time.Second}); ; {
		err := p.w.cfg.Prefs.Fetch(p.ctx, ch, users)
		if err == nil || p.untilDrain.Err() != nil {
			return
		}
		p.w.cfg.Logger.Error("cannot read the profiles of users; a bulk lane will try again, other lanes treat the users as unknown", "lane", p.w.cfg.Lane.String(), "users", len(users), "err", err)
		if !p.w.cfg.Lane.Bulk || !pause.Wait(p.untilDrain) {
			return
		}
	}
}

// mayCall returns true if an envelope may still be claimed after a wait. It returns false if the
// gate or all routes were shut during the wait, or if preferences or cancellations became too old.
// An expired envelope may always be claimed, because no call is made for it.
func (p *partition) mayCall(e *notify.Envelope) bool {
	cfg := &p.w.cfg
	return e.Expired(time.Now()) || !cfg.Gate.IsShut() && p.isFresh() && cfg.Health.anyReady(&cfg.Routes)
}
