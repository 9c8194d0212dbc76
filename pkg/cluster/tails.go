package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
)

// Limits of a tail. A limit for all processes together is divided equally among the processes that
// answer.
const (
	tailOutcomes = 2000                   // outcomes a second, over all processes
	tailMessages = 250                    // messages a second, over all processes
	tailBytes    = 32 << 10               // bytes of a message
	tailPause    = 100 * time.Millisecond // shortest time between two messages of a process
	tailAnswer   = 2 * time.Second        // longest time between two messages: without outcomes a process sends an empty message
	tailSilent   = 3 * tailAnswer         // a process that sends nothing for this time counts as missing

	mostTails       = 16 // tails in the whole cluster that other processes answer
	mostCallerTails = 4  // of these tails, how many may have the same caller in the filter
	tailPrefix      = "tail:"
)

// Tails shows the outcomes of all processes to a client of one process. While the client's tail is
// open, its process asks the other processes for outcomes: it adds a tailWish to its heartbeat
// (see LaneStops) and listens to a broadcast channel. Each process with workers then sends the
// outcomes that match the filter, in batches. Without an open tail there are no messages and no
// connection. The methods are safe for concurrent use.
type Tails struct {
	own       server.Tail // outcomes of this process
	wire      engine.Broadcast
	standings *LaneStops
	cards     *Cards
	owner     string
	name      string        // name of this process in its messages
	changed   chan struct{} // capacity 1; a value makes Run check the fields below

	mu           sync.Mutex           // guards the fields below
	opened       int                  // how many tails were opened since the start; the number is a part of the next tail's name
	open         map[string]*openTail // by the name of the tail's wish
	workers      []Card               // processes with workers, read while a tail is open; nil: unknown
	listenErr    error                // why Listen failed; nil: it listens, or will listen soon
	othersWishes map[tailID]tailWish  // wishes of other processes that this process answers
	wishesReadAt time.Time            // when the latest successful read of wishes began
}

// tailID identifies a tailWish.
type tailID struct{ owner, name string }

// tailWish asks the other processes for the outcomes of one tail.
type tailWish struct {
	Filter  api.TailFilter `json:"filter"`
	Opened  int64          `json:"opened"`  // ms since 1970; if there are too many tails, the oldest are answered
	Workers int            `json:"workers"` // the limits are divided by this number of processes
}

// pace returns the pause between two messages of a process, and the largest number of outcomes in a
// message.
func (w *tailWish) pace() (every time.Duration, most int) {
	n := time.Duration(max(w.Workers, 1))
	every = min(max(n*time.Second/tailMessages, tailPause), tailAnswer)
	return every, max(int(tailOutcomes*every/time.Second/n), 1)
}

// answeredWishes returns the wishes that the processes answer: at most mostTails, and at most
// mostCallerTails for one caller, the oldest first. All processes choose the same wishes.
func answeredWishes(wishes map[tailID]tailWish) []tailID {
	order := slices.SortedFunc(maps.Keys(wishes), func(a, b tailID) int {
		return cmp.Or(cmp.Compare(wishes[a].Opened, wishes[b].Opened), strings.Compare(a.owner, b.owner), strings.Compare(a.name, b.name))
	})
	var out []tailID
	callers := map[string]int{}
	for _, id := range order {
		caller := wishes[id].Filter.Caller
		if callers[caller]++; callers[caller] <= mostCallerTails && len(out) < mostTails {
			out = append(out, id)
		}
	}
	return out
}

// tailMessage is a batch of outcomes, sent to the process that shows a tail.
type tailMessage struct {
	Tail    string            `json:"tail"` // name of the wish
	Owner   string            `json:"owner"`
	Name    string            `json:"name"`
	Events  []json.RawMessage `json:"events,omitempty"`
	Dropped int64             `json:"dropped,omitempty"` // outcomes that were dropped because of the limits
}

// openTail is a tail that this process shows.
type openTail struct {
	name         string
	wish         tailWish         // Tails.mu guards Workers; the other fields never change
	inbox        chan tailMessage // from deliver to shownTail.run
	missedEvents atomic.Int64     // outcomes that arrived faster than the client read them
	crowded      atomic.Bool      // too many tails are open, and the other processes do not answer this tail
}

// NewTails returns the tails of the process with this name. The parameter own is the tail that
// shows only the outcomes of this process. NewTails also makes s use the returned tails, so it must
// be called before s.Share runs.
func NewTails(own server.Tail, name string, wire engine.Broadcast, s *LaneStops, c *Cards) *Tails {
	t := &Tails{own: own, wire: wire, standings: s, cards: c, owner: s.owner, name: name, changed: make(chan struct{}, 1), open: map[string]*openTail{}}
	s.tails = t
	return t
}

// signalChange makes Run check again the fields that mu guards. It does not block.
func (t *Tails) signalChange() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// ownWishes returns the wishes of this process by name: one for each of its open tails. If more tails
// are open than the other processes answer (see answeredWishes), it omits the newest of them and marks
// them as crowded. It returns no wishes until the number of processes with workers is known.
func (t *Tails) ownWishes() map[string]tailWish {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.workers == nil {
		return nil
	}
	workers := 1
	for workers < len(t.workers) {
		workers *= 2 // a power of two changes rarely, and every process must read each change
	}
	all := map[tailID]tailWish{}
	for name, o := range t.open {
		o.wish.Workers = workers
		all[tailID{t.owner, name}] = o.wish
	}
	out := map[string]tailWish{}
	for _, id := range answeredWishes(all) {
		out[id.name] = all[id]
	}
	for name, o := range t.open {
		if _, told := out[name]; !told {
			o.crowded.Store(true)
		}
	}
	return out
}

// setOthersWishes stores those wishes of other processes that this process must answer. The
// argument all contains the wishes of all processes, including this process. For each tail of this
// process it also sets openTail.crowded: true if too many tails are open, so that the other
// processes do not answer this tail.
func (t *Tails) setOthersWishes(all map[tailID]tailWish) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.othersWishes = map[tailID]tailWish{}
	for _, id := range answeredWishes(all) {
		t.othersWishes[id] = all[id]
	}
	for name, o := range t.open {
		id := tailID{t.owner, name}
		if _, told := all[id]; told {
			_, is := t.othersWishes[id]
			o.crowded.Store(!is)
		}
		delete(t.othersWishes, id)
	}
	t.signalChange()
}

// noteWishesRead is called after a successful read of the wishes. It stores when that read began.
func (t *Tails) noteWishesRead(began time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wishesReadAt = began
}

// answeredNow returns the wishes that this process answers now, and whether it shows a tail. If
// the last read of the wishes is older than standingTTL, it returns no wishes.
func (t *Tails) answeredNow() (asked map[tailID]tailWish, shows bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.wishesReadAt) < standingTTL {
		asked = maps.Clone(t.othersWishes)
	}
	return asked, len(t.open) > 0
}

// Run sends outcomes for the tails of other processes, if this process works on lanes. While this
// process shows a tail, Run receives the outcomes of the other processes. It runs until ctx ends,
// and returns after all goroutines that it started have ended.
func (t *Tails) Run(ctx context.Context, lanes []notify.Lane) error {
	type answering struct {
		wish atomic.Pointer[tailWish]
		stop context.CancelFunc
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	answers := map[tailID]*answering{}
	hears, stopHearing := false, func() {}
	defer func() { stopHearing() }()
	for ctx.Err() == nil {
		asked, shows := t.answeredNow()
		if len(lanes) == 0 {
			asked = nil
		}
		for id, a := range answers {
			if _, goesOn := asked[id]; !goesOn {
				a.stop()
				delete(answers, id)
			}
		}
		for id, w := range asked {
			a := answers[id]
			if a == nil {
				a = &answering{}
				a.wish.Store(&w)
				var on context.Context
				on, a.stop = context.WithCancel(ctx)
				answers[id] = a
				parts.Go(func() { t.sendOutcomes(on, id, &a.wish) })
			}
			a.wish.Store(&w)
		}
		switch {
		case shows && !hears:
			on, stop := context.WithCancel(ctx)
			stopHearing = stop
			parts.Go(func() { t.listen(on) })
			parts.Go(func() { t.followWorkers(on) })
		case !shows && hears:
			stopHearing()
			t.mu.Lock()
			t.workers, t.listenErr = nil, nil
			t.mu.Unlock()
		}
		hears = shows
		var over <-chan time.Time
		if len(answers) > 0 { // while Redis is unreachable, wishes end without a signal
			over = time.After(standingBeat)
		}
		select {
		case <-t.changed:
		case <-over:
		case <-ctx.Done():
		}
	}
	return nil
}

func tailChannel(owner string) string { return "tails:" + owner }

// sendOutcomes sends this process's outcomes to the process that shows the tail id, until ctx ends.
func (t *Tails) sendOutcomes(ctx context.Context, id tailID, wish *atomic.Pointer[tailWish]) {
	events, missed := t.own.Subscribe(ctx, wish.Load().Filter)
	m, size, counted := tailMessage{Tail: id.name, Owner: t.owner, Name: t.name}, 0, int64(0)
	due := time.NewTimer(0)
	defer due.Stop()
	for sent := (time.Time{}); ; {
		every, most := wish.Load().pace()
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			var b []byte
			if len(m.Events) < most { // otherwise b stays empty, and the outcome counts as dropped
				b, _ = json.Marshal(&e)
			}
			if len(b) == 0 || size+len(b) > tailBytes {
				m.Dropped++
				continue
			}
			m.Events, size = append(m.Events, b), size+len(b)
		case <-due.C:
			due.Reset(every)
			now := missed()
			m.Dropped, counted = m.Dropped+now-counted, now
			if len(m.Events) == 0 && m.Dropped == 0 && time.Since(sent) < tailAnswer {
				continue
			}
			call, stop := context.WithTimeout(ctx, tailAnswer)
			b, err := json.Marshal(&m)
			if err == nil {
				err = t.wire.Send(call, tailChannel(id.owner), b)
			}
			stop()
			if sent = time.Now(); err != nil { // the next message counts these outcomes as dropped
				m.Dropped += int64(len(m.Events))
			} else {
				m.Dropped = 0
			}
			m.Events, size = nil, 0
		}
	}
}

// listen receives the answers to the tails of this process until ctx ends. After an error it waits
// at most 5 s and tries again.
func (t *Tails) listen(ctx context.Context) {
	set := func(err error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.listenErr = err
	}
	for pause := (notify.Pause{Most: 5 * time.Second}); ; {
		err := t.wire.Listen(ctx, tailChannel(t.owner), func() { set(nil); pause = notify.Pause{Most: 5 * time.Second} }, t.deliver)
		if ctx.Err() != nil {
			return
		}
		set(err)
		pause.Wait(ctx)
	}
}

// deliver puts a message into the inbox of its tail. If the inbox is full, it drops the message and
// counts its outcomes, so that a slow tail does not delay the other tails.
func (t *Tails) deliver(raw []byte) {
	var m tailMessage
	if json.Unmarshal(raw, &m) != nil {
		return
	}
	t.mu.Lock()
	o := t.open[m.Tail]
	t.mu.Unlock()
	if o == nil {
		return
	}
	select {
	case o.inbox <- m:
	default:
		o.missedEvents.Add(int64(len(m.Events)) + m.Dropped)
	}
}

// followWorkers reads which processes have workers, once per cardBeat, until ctx ends.
func (t *Tails) followWorkers(ctx context.Context) {
	for {
		cards := slices.DeleteFunc(t.cards.All(ctx), func(c Card) bool {
			tasks, err := ParseRoles(c.Roles)
			return c.State != api.ProcessUnknown && err == nil && len(tasks.Lanes) == 0
		})
		t.mu.Lock()
		grown := len(cards) != len(t.workers)
		t.workers = append([]Card{}, cards...)
		t.mu.Unlock()
		if grown {
			t.standings.requestBeat()
		}
		if !notify.Sleep(ctx, cardBeat) {
			return
		}
	}
}

// Subscribe implements server.Tail. Its channel gets the outcomes of all processes, and events that
// say which processes send outcomes and which do not answer. The returned function returns how many
// events were missed because the channel was full.
func (t *Tails) Subscribe(ctx context.Context, f api.TailFilter) (<-chan api.Event, func() int64) {
	own, missed := t.own.Subscribe(ctx, f)
	o := &openTail{inbox: make(chan tailMessage, 64), wish: tailWish{Filter: f, Opened: time.Now().UnixMilli()}}
	t.mu.Lock()
	t.opened++
	o.name = fmt.Sprint(tailPrefix, t.opened)
	t.open[o.name] = o
	t.mu.Unlock()
	t.signalChange()
	t.standings.requestBeat()
	out := make(chan api.Event, 1024)
	go func() {
		defer close(out)
		s := &shownTail{t: t, o: o, out: out, dropped: map[string]int64{}, answers: map[string]*tailAnswers{}, names: map[string]string{t.owner: t.name}}
		s.run(own)
		t.mu.Lock()
		delete(t.open, o.name)
		t.mu.Unlock()
		t.signalChange()
		t.standings.requestBeat()
	}()
	return out, func() int64 { return missed() + o.missedEvents.Load() }
}

// shownTail merges the outcomes of all processes for one client. Only the goroutine that Subscribe
// starts uses it.
type shownTail struct {
	t       *Tails
	o       *openTail
	out     chan<- api.Event
	names   map[string]string       // names of processes, by owner
	answers map[string]*tailAnswers // by owner
	// dropped contains, by owner, the number of outcomes that were dropped because of the limits
	// and that the client has not been told about yet.
	dropped       map[string]int64
	toldProcesses string // the processes in the last message to the client
}

// tailAnswers says when a process last sent outcomes for a tail, and whether it has sent any.
type tailAnswers struct {
	last         time.Time // time of its last message; before the first message, when the process was first listed
	answeredOnce bool
}

// run merges the outcomes of this process (ownEvents) and of the inbox until ownEvents is closed.
func (s *shownTail) run(ownEvents <-chan api.Event) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case e, ok := <-ownEvents:
			if !ok {
				return
			}
			s.show(&e, s.t.owner)
			continue // the list of processes has not changed
		case m := <-s.o.inbox:
			a := s.answers[m.Owner]
			if a == nil {
				a = &tailAnswers{}
				s.answers[m.Owner] = a
			}
			if s.names[m.Owner] == "" {
				s.names[m.Owner] = m.Name
			}
			first := !a.answeredOnce
			a.last, a.answeredOnce = time.Now(), true
			for _, raw := range m.Events {
				var e api.Event
				// Apply the filter here again, because it limits what the caller may see. Another
				// process may have sent other outcomes.
				if json.Unmarshal(raw, &e) == nil && e.Type == api.EventOutcome && s.o.wish.Filter.Takes(&e) {
					s.show(&e, m.Owner)
				}
			}
			if m.Dropped > 0 {
				s.dropped[m.Owner] += m.Dropped
			}
			if !first {
				continue
			}
		case <-tick.C:
			s.tellDropped()
		}
		s.tellProcesses()
	}
}

func (s *shownTail) show(e *api.Event, owner string) {
	e.Process = s.names[owner]
	if !s.trySend(e) {
		s.o.missedEvents.Add(1)
	}
}

// trySend sends an event to the client if there is room, and reports whether it did.
func (s *shownTail) trySend(e *api.Event) bool {
	select {
	case s.out <- *e:
		return true
	default:
		return false
	}
}

// tellDropped sends the client an event of type EventGap for each process whose outcomes were
// partly dropped because of the limits.
func (s *shownTail) tellDropped() {
	for owner, n := range s.dropped {
		if s.trySend(&api.Event{Type: api.EventGap, At: time.Now().UTC(), Process: s.names[owner], Dropped: n}) {
			delete(s.dropped, owner)
		}
	}
}

// tellProcesses sends the client a list of the processes that send outcomes and of the processes
// that are missing. It sends no list while the state of a process is unknown, or if the list has
// not changed.
func (s *shownTail) tellProcesses() {
	e := api.Event{Type: api.EventProcesses, At: time.Now().UTC(), Processes: []string{}}
	if !s.addProcesses(&e) {
		return
	}
	said := strings.Join(e.Processes, " ")
	for i := range e.Missing {
		said += " -" + e.Missing[i].Name
	}
	if said != s.toldProcesses && s.trySend(&e) {
		s.toldProcesses = said
	}
}

// addProcesses adds to e the processes that answer and the processes that do not answer. It
// returns false if for some process this is not yet known.
func (s *shownTail) addProcesses(e *api.Event) bool {
	s.t.mu.Lock()
	workers, deaf := s.t.workers, s.t.listenErr
	s.t.mu.Unlock()
	if workers == nil {
		return false
	}
	others := ""
	switch {
	case s.o.crowded.Load():
		others = fmt.Sprintf("%d older tails are open, or %d older tails of this caller: this tail shows only the outcomes of the process to which the client is connected", mostTails, mostCallerTails)
	case deaf != nil:
		others = deaf.Error()
	}
	known, now := true, time.Now()
	for i := range workers {
		c := &workers[i]
		s.names[c.Owner] = c.Name
		a := s.answers[c.Owner]
		if a == nil {
			a = &tailAnswers{last: now}
			s.answers[c.Owner] = a
		}
		switch {
		case c.Owner == s.t.owner:
			e.Processes = append(e.Processes, c.Name)
		case c.State == api.ProcessUnknown && others == "", c.State == api.ProcessMissing:
			e.Missing = append(e.Missing, c.Process)
		case others != "":
		case now.Sub(a.last) >= tailSilent:
			p := c.Process
			p.State, p.AgeSeconds = api.ProcessMissing, now.Sub(a.last).Seconds()
			e.Missing = append(e.Missing, p)
		case a.answeredOnce:
			e.Processes = append(e.Processes, c.Name)
		default:
			known = false
		}
	}
	if others != "" {
		e.Missing = append(e.Missing, api.Process{Name: "other processes", State: api.ProcessUnknown, Note: others})
	}
	return known
}
