package worker

import (
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Where a window runs: in the goroutine of its job, or in one of its own.
type runWhere uint8

const (
	runHere runWhere = iota
	runBeside
)

// window claims one position and runs it here. False: the partition is going, the
// rest of the job is left.
func (j *job) window(pos uint32) bool {
	if j.p.w.claimLast {
		return j.admitAndCall(pos, pos+1, runHere)
	}
	w := j.newWindow(pos, pos+1)
	return j.reserve(w) && j.start([]*window{w}, runHere)
}

// windowsFrom returns the next windows of a job: the first one, for which it
// waits, and those for which there is room now. Claimed together they cost one
// write of the row, which for a window of 1,000 was a twentieth of its time.
// False: the partition is going. again: positions below it are claimed apart.
func (j *job) windowsFrom(from, again, size uint32) (ws []*window, ok bool) {
	for from < j.env.Count {
		hi := min((from/size+1)*size, j.env.Count)
		if from < again {
			hi = min(hi, again)
		}
		w := j.newWindow(from, hi)
		if len(ws) == 0 {
			if !j.reserve(w) {
				return nil, false
			}
		} else if !j.tryReserve(w) {
			break
		}
		ws = append(ws, w)
		if from = hi; from == again {
			break
		}
	}
	return ws, true
}

func (j *job) newWindow(lo, hi uint32) *window {
	return &window{job: j, lo: lo, hi: hi, rd: j.readerAt(lo)}
}

// start claims windows, which follow each other and hold their budget, and runs
// them. False: the partition is going.
func (j *job) start(ws []*window, where runWhere) bool {
	p, last := j.p, ws[len(ws)-1]
	giveBack := func() {
		for _, w := range ws {
			p.early.release(w.early)
			p.budget.release(w.budget)
		}
	}
	// Here, so that a job's claims enter in their order: when the partition is going,
	// none is called behind one that is not.
	if p.w.cfg.Solo.enter(p.soft) != nil {
		giveBack()
		return false
	}
	j.mu.Lock()
	j.windows += len(ws)
	j.mu.Unlock()
	work := func() {
		err := j.claim(last)
		p.w.cfg.Solo.leave() // a window that has not entered yet may be waited for in order
		if err != nil {
			giveBack()
			return
		}
		for _, w := range ws[:len(ws)-1] {
			p.wg.Go(func() { j.call(w) })
		}
		j.call(last)
	}
	if where == runHere || last.whole() {
		work()
	} else {
		p.wg.Go(work)
	}
	return p.soft.Err() == nil
}

// call runs a window in its turn.
func (j *job) call(w *window) {
	p := j.p
	defer p.budget.release(w.budget)
	mine := j.myTurn()
	p.early.release(w.early)
	if !mine {
		return
	}
	killpoint.Hit("claimed")
	p.w.runWindow([]*window{w}, nil, noPass)
}

// reserve waits until a window has its budget and the lane does not stand.
// False: the partition is going.
func (j *job) reserve(w *window) bool {
	p := j.p
	var err error
	if w.budget, w.early, err = p.reserve(j, int(w.hi-w.lo)); err != nil {
		return false
	}
	if !p.w.cfg.Gate.wait(p.soft, j.env.Expires) ||
		!p.w.cfg.Health.waitReady(p.soft, &p.w.cfg.Routes, j.env.Expires) {
		p.early.release(w.early)
		p.budget.release(w.budget)
		return false
	}
	return true
}

// tryReserve is reserve that does not wait.
func (j *job) tryReserve(w *window) (ok bool) {
	p, n := j.p, int(w.hi-w.lo)
	if p.w.cfg.Gate.IsShut() {
		return false
	}
	if j.turn != nil && !j.turn.come() {
		if p.early.size < n {
			return false
		}
		if w.early, ok = p.early.try(n); !ok {
			return false
		}
	}
	if w.budget, ok = p.budget.try(n); !ok {
		p.early.release(w.early)
	}
	return ok
}

// reserve takes n of the partition's budget for a window of j. While j's turn
// has not come it may take only of the half that is for those: else windows that
// wait for an envelope before them could hold all that this one needs, and the
// partition would stand for ever. The earliest envelopes go ahead first.
func (p *partition) reserve(j *job, n int) (budget, early int, err error) {
	if j.turn != nil && !j.turn.come() {
		if p.early.size < n {
			if !j.myTurn() {
				return 0, 0, p.soft.Err()
			}
		} else if early, err = p.early.acquireOr(p.soft, 0, uint64(j.turn.n), n, j.turn.ready); err != nil {
			return 0, 0, err
		}
	}
	if budget, err = p.budget.acquire(p.soft, j.env.Category, n); err != nil {
		p.early.release(early)
	}
	return budget, early, err
}

// myTurn waits until the envelopes before this one have answered. False: the
// partition is going first; then no window of the job is called, so that what
// was called is always a beginning of the job.
func (j *job) myTurn() bool {
	if j.turn == nil {
		return true
	}
	select {
	case <-j.turn.ready:
	case <-j.p.soft.Done():
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.fate == undecided {
		j.fate = left
		if j.turn.come() {
			j.fate = called
		}
	}
	return j.fate == called
}

// capacity takes n of the provider's. When the partition is about to go, a job
// of one window is left to the next owner; windows of a job that may have been
// called in part go on, unless every route is shut.
func (p *partition) capacity(cat notify.Category, n int, whole bool) (int, error) {
	held, err := p.w.capacity.acquire(p.soft, cat, n)
	if err != nil && !whole && !p.w.capacity.isShut() {
		held, err = p.w.capacity.acquire(p.ctx, cat, n)
	}
	return held, err
}

// whole reports whether the window is all of its job.
func (w *window) whole() bool { return w.lo == 0 && w.hi == w.job.env.Count }

// putOff ends a window that the partition's end overtook before its call. The
// job's other windows may have been called, so its receivers go on by
// themselves, and may be passed by later messages of their users (a row cannot
// say that positions behind an open one are done); a job of one window is left
// to the next owner instead.
func (w *window) putOff() {
	j := w.job
	if w.whole() {
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

// run hands out the windows of a job that are not done yet. alone: the span that was
// started too often takes solo runs first (see runSolo).
func (j *job) run(alone bool) {
	p, cfg := j.p, &j.p.w.cfg
	if cfg.Role == Retries && !p.w.due(j) {
		return
	}
	if whole, code := p.w.wholly(j, time.Now()); whole != notify.None {
		if j.endWhole(whole, code) {
			j.handedOut()
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
	if p.mail != nil && j.env.Count == 1 && from == 0 && again == 0 && p.mail.takes(j) {
		p.mail.add(j)
		return
	}
	if p.mail != nil && j.env.Category.Critical() {
		p.mail.hurry(j)
	}
	// After a panic its receivers run one by one, so that it costs the one that
	// causes it its attempts, and no other.
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
		if !j.start(ws, runBeside) {
			return
		}
	}
	j.handedOut()
}

// readerAt returns a reader that stands at position pos.
func (j *job) readerAt(pos uint32) notify.ReceiverReader {
	m := j.at[pos/uint32(j.p.w.cfg.Window)]
	var r notify.Receiver
	for m.pos < pos {
		m.rd.Next(&r)
		m.pos++
	}
	return m.rd
}

// endWhole ends what has no outcome yet without a call, and tells of it. False: the
// partition is gone.
func (j *job) endWhole(s notify.State, code string) bool {
	j.mu.Lock()
	from := j.doneTo
	j.mu.Unlock()
	said, err := j.delivered(from, j.env.Count, func(uint32) bool { return true })
	if err != nil {
		return false
	}
	info := SettledInfo{Lane: j.p.w.cfg.Lane, Envelope: &j.env, Row: j.row.Key, Codes: map[string]int{}}
	j.mu.Lock()
	for pos := j.doneTo; pos < j.env.Count; pos++ {
		state, code := j.unsent(pos, s, code)
		x := notify.Exception{State: state, Code: code}
		if told, ok := said[pos]; ok {
			x, state, code = told, told.State, told.Code
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

// delivered returns, by position, what receipts say of receivers from one position up to
// below another that were called before and that a receipt calls delivered; which chooses
// among them.
func (j *job) delivered(from, to uint32, which func(pos uint32) bool) (map[uint32]notify.Exception, error) {
	if j.env.Channel == notify.Push || !j.calledBefore(from) { // of push there are no receipts
		return nil, nil
	}
	var keys []notify.RowKey
	var of []uint32 // position of each key
	rd, rec := notify.ReadReceivers(j.env.Receivers), notify.Receiver{}
	for pos := uint32(0); pos < to && rd.Next(&rec); pos++ {
		if pos < from || !j.calledBefore(pos) || !which(pos) {
			continue
		}
		targets, _ := notify.Targets(nil, rec.Address) // none: one address of its profile, or damaged, which was told
		for addr := range max(len(targets), 1) {
			keys = receiptKeys(keys, &notify.Item{Key: &j.row.Key, Index: rec.Index, Addr: uint8(addr)})
		}
		for len(of) < len(keys) {
			of = append(of, pos)
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	rows, err := j.p.rows(keys, j.p.w.cfg.Status.Get)
	if err != nil {
		return nil, err
	}
	said := map[uint32]notify.Exception{}
	for k := range rows {
		if d := &rows[k].Default; d.State == notify.Delivered {
			said[of[k]] = notify.Exception{Pos: of[k], State: notify.Delivered, Code: d.Code, Provider: d.Provider, Receipt: d.Receipt, Class: notify.ClassReceipt}
		}
	}
	return said, nil
}

// unsent is the outcome of a receiver that ends without a call, or without a
// further one: EXPIRED, SUPPRESSED and CANCELLED stand only where none was ever
// made.
func (j *job) unsent(pos uint32, s notify.State, code string) (notify.State, string) {
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

// admitAndCall brings the receivers of a job from one position up to below another
// through the provider, as many at a time as may be called, and each part claimed
// right before its call. The parts are claimed in order, so that the claims never
// cover what still waits. False: the partition is going; what was not claimed is
// the next owner's.
func (j *job) admitAndCall(from, to uint32, where runWhere) bool {
	p := j.p
	for from < to {
		if !j.myTurn() {
			return false
		}
		a, n, ok := p.admit(&j.env, int(min(to-from, uint32(p.w.cfg.Window))))
		if !ok {
			return false
		}
		if p.w.cfg.Solo.enter(p.soft) != nil {
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
		if where == runHere || w.whole() {
			work()
		} else {
			p.wg.Go(work)
		}
	}
	return p.soft.Err() == nil
}

// calledBefore reports whether an earlier call may have been made for a
// receiver, whatever came of it: also one that was answered with an error has
// been taken when a receipt says so.
func (j *job) calledBefore(pos uint32) bool {
	e := &j.env
	return pos < j.resumedTo || e.Attempt > 0 || strings.HasPrefix(e.Cause, causeCalled) || strings.HasPrefix(e.Cause, causeMaybe)
}
