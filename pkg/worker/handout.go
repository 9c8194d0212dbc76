package worker

import (
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/notify"
)

// runWhere says whether a window runs in the goroutine of its job or in its own goroutine.
type runWhere uint8

const (
	runHere runWhere = iota
	runBeside
)

// runPosition claims the receiver at position pos and runs its window in this goroutine. It returns
// false if the partition is being drained. Then the next owner does the rest of the job.
func (j *job) runPosition(pos uint32) bool {
	if j.p.w.claimLast {
		return j.admitAndCall(pos, pos+1, runHere)
	}
	w := j.newWindow(pos, pos+1)
	return j.reserveWindow(w) && j.claimAndRun([]*window{w}, runHere)
}

// windowsFrom returns the next windows of a job, beginning at position start. A window has at most
// size receivers. windowsFrom waits until the first window has budget, and adds further windows
// while they get budget without waiting. Windows that are claimed together need only one write of
// the row.
//
// Positions below resumedTo were started before. Windows below and above resumedTo are claimed
// separately, so the result contains only windows of one of these two kinds. windowsFrom returns
// false if the partition is being drained.
func (j *job) windowsFrom(start, resumedTo, size uint32) (ws []*window, ok bool) {
	for start < j.env.Count {
		hi := min((start/size+1)*size, j.env.Count)
		if start < resumedTo {
			hi = min(hi, resumedTo)
		}
		w := j.newWindow(start, hi)
		if len(ws) == 0 {
			if !j.reserveWindow(w) {
				return nil, false
			}
		} else if !j.tryReserve(w) {
			break
		}
		ws = append(ws, w)
		if start = hi; start == resumedTo {
			break
		}
	}
	return ws, true
}

func (j *job) newWindow(lo, hi uint32) *window {
	return &window{job: j, lo: lo, hi: hi, rd: j.readerAt(lo)}
}

// claimAndRun claims consecutive windows that have their budget, and runs them. It returns false if
// the partition is being drained.
func (j *job) claimAndRun(ws []*window, where runWhere) bool {
	p, last := j.p, ws[len(ws)-1]
	giveBack := func() {
		for _, w := range ws {
			p.early.release(w.early)
			p.budget.release(w.budget)
		}
	}
	// Enter the Solo here, so that the windows of a job enter in their order. Then, in a drain, the
	// windows that were called are always the first windows of the job.
	if p.w.cfg.Solo.enter(p.untilDrain) != nil {
		giveBack()
		return false
	}
	j.mu.Lock()
	j.windows += len(ws)
	j.mu.Unlock()
	work := func() {
		err := j.claim(last)
		// Leave the Solo before waiting for the turn. Earlier envelopes may still have to enter the
		// Solo before this job gets its turn.
		p.w.cfg.Solo.leave()
		if err != nil {
			giveBack()
			return
		}
		for _, w := range ws[:len(ws)-1] {
			p.wg.Go(func() { j.callInTurn(w) })
		}
		j.callInTurn(last)
	}
	if where == runHere || last.coversJob() {
		work()
	} else {
		p.wg.Go(work)
	}
	return p.untilDrain.Err() == nil
}

// callInTurn waits for the job's turn and runs a window.
func (j *job) callInTurn(w *window) {
	p := j.p
	defer p.budget.release(w.budget)
	mine := j.waitTurn()
	p.early.release(w.early)
	if !mine {
		return
	}
	killpoint.Hit("claimed")
	p.w.runWindow([]*window{w}, nil, noPass)
}

// reserveWindow waits until a window has its budget, the gate is open and a route works. It also
// returns true when the envelope has expired, so that its receivers can be ended. It returns false
// if the partition is being drained.
func (j *job) reserveWindow(w *window) bool {
	p := j.p
	var err error
	if w.budget, w.early, err = p.reserveBudget(j, int(w.hi-w.lo)); err != nil {
		return false
	}
	if !p.w.cfg.Gate.wait(p.untilDrain, j.env.Expires) ||
		!p.w.cfg.Health.waitReady(p.untilDrain, &p.w.cfg.Routes, j.env.Expires) {
		p.early.release(w.early)
		p.budget.release(w.budget)
		return false
	}
	return true
}

// tryReserve gets the budget of a window if the gate is open, but returns false where reserveWindow
// would wait. It does not check the routes, because reserveWindow has just checked them for an
// earlier window of the job.
func (j *job) tryReserve(w *window) (ok bool) {
	p, n := j.p, int(w.hi-w.lo)
	if p.w.cfg.Gate.IsShut() {
		return false
	}
	if j.turn != nil && !j.turn.hasCome() {
		if p.early.size < n {
			return false
		}
		if w.early, ok = p.early.tryAcquire(n); !ok {
			return false
		}
	}
	if w.budget, ok = p.budget.tryAcquire(n); !ok {
		p.early.release(w.early)
	}
	return ok
}

// reserveBudget acquires n receivers of the partition's budget for a window of the job j. Until the
// job has its turn, its windows may use only half of the budget (p.early). Otherwise jobs that wait
// for an earlier envelope could use up the budget that the earlier envelope needs, and the
// partition would never continue. Among the waiting jobs, the job of the earliest envelope is
// served first.
func (p *partition) reserveBudget(j *job, n int) (budget, early int, err error) {
	if j.turn != nil && !j.turn.hasCome() {
		if p.early.size < n {
			if !j.waitTurn() {
				return 0, 0, p.untilDrain.Err()
			}
		} else if early, err = p.early.acquireUntil(p.untilDrain, 0, uint64(j.turn.number), n, j.turn.ready); err != nil {
			return 0, 0, err
		}
	}
	if budget, err = p.budget.acquire(p.untilDrain, j.env.Category, n); err != nil {
		p.early.release(early)
	}
	return budget, early, err
}

// waitTurn waits for the job's turn, that is, until the earlier envelopes that the job must wait for
// have results. It returns false if the partition is drained first. Then no later window of the job
// is called, so that the called windows are always the first windows of the job.
func (j *job) waitTurn() bool {
	if j.turn == nil {
		return true
	}
	select {
	case <-j.turn.ready:
	case <-j.p.untilDrain.Done():
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.fate == fateOpen {
		j.fate = fateLeft
		if j.turn.hasCome() {
			j.fate = fateCalled
		}
	}
	return j.fate == fateCalled
}

// acquireCapacity acquires n slots of the provider's capacity. The parameter whole means that the
// job has only one window. If a drain begins during the wait, acquireCapacity returns an error for
// such a job, and the next owner does the job. If the job has several windows, some may have been
// called already. So acquireCapacity continues to wait in a drain, unless every route is shut.
func (p *partition) acquireCapacity(cat notify.Category, n int, whole bool) (int, error) {
	held, err := p.w.capacity.acquire(p.untilDrain, cat, n)
	if err != nil && !whole && !p.w.capacity.isShut() {
		held, err = p.w.capacity.acquire(p.ctx, cat, n)
	}
	return held, err
}

// coversJob reports whether the window covers its whole job.
func (w *window) coversJob() bool { return w.lo == 0 && w.hi == w.job.env.Count }

// handOver defers the receivers of a window that a drain stopped before its call. Later windows of
// the job may have been called already, and a row cannot say that later positions are done while
// earlier positions are not. So the receivers of this window become a separate envelope. Later
// messages of their users may overtake that envelope. If the job has only one window, handOver does
// nothing, and the next owner does the job.
func (w *window) handOver() {
	j := w.job
	if w.coversJob() {
		return
	}
	wake := roundUp(time.Now().Add(time.Second), time.Second)
	ex := make([]notify.Exception, 0, w.hi-w.lo)
	for pos := w.lo; pos < w.hi; pos++ {
		ex = append(ex, notify.Exception{Pos: pos, State: notify.Deferred, Code: codeHandedOver, Wake: wake})
	}
	if j.finishWindow(notify.Exception{}, nil, w.lo, ex) {
		j.finish()
	}
}

// handOutWindows starts the windows of a job, from the first position without an outcome. If alone
// is true, it first calls the receivers that were started too often, in solo runs (see runSolo).
func (j *job) handOutWindows(alone bool) {
	p, cfg := j.p, &j.p.w.cfg
	if cfg.Role == Retries && !p.w.waitDue(j) {
		return
	}
	if whole, code := p.w.endsWhole(j, time.Now()); whole != notify.None {
		if j.endWithoutCall(whole, code) {
			j.allHandedOut()
		}
		return
	}
	j.mu.Lock()
	from, again := j.doneTo, j.resumedTo
	j.mu.Unlock()
	if alone {
		if !j.runSolo(from, again) {
			return
		}
		from = again
	}
	if p.mailbox != nil && j.env.Count == 1 && from == 0 && again == 0 && p.mailbox.mayHold(j) {
		p.mailbox.add(j)
		return
	}
	if p.mailbox != nil && j.env.Category.Critical() {
		p.mailbox.releaseHeld(j)
	}
	// If an earlier call of these receivers panicked, each receiver gets a window of its own. So only
	// the receiver that causes the panic loses attempts.
	size := uint32(cfg.Window)
	if strings.HasSuffix(j.env.Cause, codePanic) {
		size = 1
	}
	for p.w.claimLast && from < j.env.Count {
		to := j.env.Count
		if size == 1 {
			to = from + 1
		}
		if from < again {
			to = min(to, again)
		}
		if !j.admitAndCall(from, to, runBeside) {
			return
		}
		from = to
	}
	for from < j.env.Count {
		ws, ok := j.windowsFrom(from, again, size)
		if !ok {
			return
		}
		from = ws[len(ws)-1].hi
		if !j.claimAndRun(ws, runBeside) {
			return
		}
	}
	j.allHandedOut()
}

// readerAt returns a reader at position pos.
func (j *job) readerAt(pos uint32) notify.ReceiverReader {
	m := j.windowStarts[pos/uint32(j.p.w.cfg.Window)]
	var r notify.Receiver
	for m.pos < pos {
		m.rd.Next(&r)
		m.pos++
	}
	return m.rd
}

// endWithoutCall ends all receivers that have no outcome yet, without calling them. It reports
// their outcomes to Events.Settled. It returns false if the partition was lost or the receipts
// cannot be read.
func (j *job) endWithoutCall(s notify.State, code string) bool {
	j.mu.Lock()
	from := j.doneTo
	j.mu.Unlock()
	delivered, err := j.deliveredByReceipt(from, j.env.Count, func(uint32) bool { return true })
	if err != nil {
		return false
	}
	info := SettledInfo{Lane: j.p.w.cfg.Lane, Envelope: &j.env, Row: j.row.Key, Codes: map[string]int{}}
	j.mu.Lock()
	for pos := j.doneTo; pos < j.env.Count; pos++ {
		state, code := j.stateWithoutCall(pos, s, code)
		x := notify.Exception{State: state, Code: code}
		if receipt, ok := delivered[pos]; ok {
			x, state, code = receipt, receipt.State, receipt.Code
		}
		j.settleLocked(pos, x)
		info.Count++
		info.States[state]++
		info.Codes[code]++
	}
	j.advanceLocked()
	j.mu.Unlock()
	if f := j.p.w.cfg.Events.Settled; f != nil && info.Count > 0 {
		f(info)
	}
	return true
}

// deliveredByReceipt returns, by position, the outcomes of receivers that were called before and
// that a receipt reports as delivered. It checks the positions in [lo, hi) for which isSelected
// returns true.
func (j *job) deliveredByReceipt(lo, hi uint32, isSelected func(pos uint32) bool) (map[uint32]notify.Exception, error) {
	if j.env.Channel == notify.Push || !j.calledBefore(lo) { // push has no receipts
		return nil, nil
	}
	var keys []notify.RowKey
	var positions []uint32 // by index in keys: the position of the key's receiver
	rd, rec := notify.ReadReceivers(j.env.Receivers), notify.Receiver{}
	for pos := uint32(0); pos < hi && rd.Next(&rec); pos++ {
		if pos < lo || !j.calledBefore(pos) || !isSelected(pos) {
			continue
		}
		targets, _ := notify.Targets(nil, rec.Address) // an error or no target: the receiver has one address, from its profile
		for addr := range max(len(targets), 1) {
			keys = receiptKeys(keys, &notify.Item{Key: &j.row.Key, Index: rec.Index, Addr: uint8(addr)})
		}
		for len(positions) < len(keys) {
			positions = append(positions, pos)
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	rows, err := j.p.readRows(keys, j.p.w.cfg.Status.Get)
	if err != nil {
		return nil, err
	}
	delivered := map[uint32]notify.Exception{}
	for k := range rows {
		if d := &rows[k].Default; d.State == notify.Delivered {
			delivered[positions[k]] = notify.Exception{Pos: positions[k], State: notify.Delivered, Code: d.Code, Provider: d.Provider, Receipt: d.Receipt, Class: notify.ClassReceipt}
		}
	}
	return delivered, nil
}

// stateWithoutCall returns the state and code of a receiver that ends without a further call. The
// parameter s is EXPIRED, SUPPRESSED or CANCELLED. The receiver gets the state s only if it was
// never called. Otherwise it gets UNKNOWN if the provider may have processed a call, and FAILED if
// not.
func (j *job) stateWithoutCall(pos uint32, s notify.State, code string) (notify.State, string) {
	e := &j.env
	switch {
	case pos < j.resumedTo || strings.HasPrefix(e.Cause, causeMaybe):
		return notify.Unknown, code
	case e.Attempt == 0 && !strings.HasPrefix(e.Cause, causeCalled):
		return s, code
	case s == notify.Expired:
		code = "deadline"
	}
	return notify.Failed, code
}

// admitAndCall calls the provider for the receivers of a job at positions in [from, to). It splits
// the receivers into windows. Each window contains as many receivers as may be called now, and is
// claimed right before its call. The windows are claimed in order, so that a claim never covers
// receivers that still wait. admitAndCall returns false if the partition is being drained. Then the
// next owner calls the receivers that were not claimed.
func (j *job) admitAndCall(from, to uint32, where runWhere) bool {
	p := j.p
	for from < to {
		if !j.waitTurn() {
			return false
		}
		a, n, ok := p.admitReceivers(&j.env, int(min(to-from, uint32(p.w.cfg.Window))))
		if !ok {
			return false
		}
		if p.w.cfg.Solo.enter(p.untilDrain) != nil {
			a.release()
			return false
		}
		if !p.mayCall(&j.env) {
			p.w.cfg.Solo.leave()
			a.release()
			continue
		}
		w := j.newWindow(from, from+uint32(n))
		from = w.hi
		j.mu.Lock()
		j.windows++
		j.mu.Unlock()
		if j.claim(w) != nil {
			p.w.cfg.Solo.leave()
			a.release()
			return false
		}
		work := func() {
			defer a.release()
			killpoint.Hit("claimed")
			p.w.runWindow([]*window{w}, a.permit, callPass)
		}
		if where == runHere || w.coversJob() {
			work()
		} else {
			p.wg.Go(work)
		}
	}
	return p.untilDrain.Err() == nil
}

// calledBefore reports whether an earlier call may have been made for a receiver. The result of the
// call does not matter: a receipt can show that the provider processed a call although the provider
// answered with an error.
func (j *job) calledBefore(pos uint32) bool {
	e := &j.env
	return pos < j.resumedTo || e.Attempt > 0 || strings.HasPrefix(e.Cause, causeCalled) || strings.HasPrefix(e.Cause, causeMaybe)
}
