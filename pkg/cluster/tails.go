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

// Bounds of a tail. Each process that answers has an equal part of the bounds that hold over
// all processes.
const (
	tailOutcomes = 2000                   // outcomes a second, over all processes
	tailMessages = 250                    // messages a second, over all processes
	tailBytes    = 32 << 10               // of a message
	tailPause    = 100 * time.Millisecond // the least between two messages of a process
	tailAnswer   = 2 * time.Second        // the most: without outcomes a process says that it is there
	tailSilent   = 3 * tailAnswer         // a process that sends nothing for so long does not answer

	mostTails       = 16 // that other processes answer, of the whole cluster
	mostCallerTails = 4  // of them, with the same caller in the filter
	tailPrefix      = "tail:"
)

// Tails show the outcomes of all processes to clients that watch one of them. The process
// that is asked tells the others its wish through Standings, and listens to a channel while
// a tail is open. Each process with workers then sends what its own tail takes, in batches,
// as long as it hears of the wish. While no tail is open nothing is sent, and there is no
// connection. Its methods may be called from many goroutines.
type Tails struct {
	own       server.Tail // of this process
	wire      engine.Broadcast
	standings *Standings
	cards     *Cards
	owner     string
	name      string        // of this process, as its messages say it
	changed   chan struct{} // Run looks at the fields below

	mu      sync.Mutex
	opened  int                  // tails since the start; it numbers them
	open    map[string]*openTail // by the name of its wish
	workers []Card               // of processes that see outcomes, read while a tail is open; nil: not known
	deaf    error                // why the channel is not heard; nil: it is, or is about to be
	asked   map[tailID]tailWish  // what other processes wish
	heard   time.Time            // when the latest look at wishes began
}

// tailID names a wish.
type tailID struct{ owner, name string }

// tailWish is what the process that shows a tail tells the others.
type tailWish struct {
	Filter  api.TailFilter `json:"filter"`
	Opened  int64          `json:"opened"`  // ms since 1970: of too many the earliest are answered
	Workers int            `json:"workers"` // that the bounds are divided by
}

// pace returns the pause between two messages of a process, and how many outcomes one
// carries at most.
func (w *tailWish) pace() (every time.Duration, most int) {
	n := time.Duration(max(w.Workers, 1))
	every = min(max(n*time.Second/tailMessages, tailPause), tailAnswer)
	return every, max(int(tailOutcomes*every/time.Second/n), 1)
}

// answered returns the wishes that processes answer. All processes choose the same ones.
func answered(wishes map[tailID]tailWish) []tailID {
	order := slices.SortedFunc(maps.Keys(wishes), func(a, b tailID) int {
		return cmp.Or(cmp.Compare(wishes[a].Opened, wishes[b].Opened), strings.Compare(a.owner, b.owner), strings.Compare(a.name, b.name))
	})
	var out []tailID
	callers := map[string]int{}
	for _, id := range order {
		of := wishes[id].Filter.Caller
		if callers[of]++; callers[of] <= mostCallerTails && len(out) < mostTails {
			out = append(out, id)
		}
	}
	return out
}

// tailMessage is what a process sends to the one that shows a tail.
type tailMessage struct {
	Tail    string            `json:"tail"` // the name of the wish
	Owner   string            `json:"owner"`
	Name    string            `json:"name"`
	Events  []json.RawMessage `json:"events,omitempty"`
	Dropped int64             `json:"dropped,omitempty"` // outcomes that the bounds left out
}

// openTail is a tail that this process shows.
type openTail struct {
	name    string
	wish    tailWish // but for Workers
	inbox   chan tailMessage
	missed  atomic.Int64 // outcomes that came faster than they were read
	crowded atomic.Bool  // too many tails are open, and the others do not answer this one
}

// NewTails returns the tails of all processes as the process of a name shows them. own are
// its outcomes.
func NewTails(own server.Tail, name string, wire engine.Broadcast, s *Standings, c *Cards) *Tails {
	t := &Tails{own: own, wire: wire, standings: s, cards: c, owner: s.owner, name: name, changed: make(chan struct{}, 1), open: map[string]*openTail{}}
	s.tails = t
	return t
}

func (t *Tails) change() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// wishes returns the wishes of this process, by name; none before it is known how many
// processes the bounds are divided by.
func (t *Tails) wishes() map[string]tailWish {
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
		workers *= 2 // so that the wish seldom changes: each change is read by all
	}
	all := map[tailID]tailWish{}
	for name, o := range t.open {
		o.wish.Workers = workers
		all[tailID{t.owner, name}] = o.wish
	}
	out := map[string]tailWish{}
	for _, id := range answered(all) {
		out[id.name] = all[id]
	}
	for name, o := range t.open {
		if _, told := out[name]; !told {
			o.crowded.Store(true)
		}
	}
	return out
}

// wished takes what all processes wish.
func (t *Tails) wished(all map[tailID]tailWish) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = map[tailID]tailWish{}
	for _, id := range answered(all) {
		t.asked[id] = all[id]
	}
	for name, o := range t.open {
		id := tailID{t.owner, name}
		if _, told := all[id]; told {
			_, is := t.asked[id]
			o.crowded.Store(!is)
		}
		delete(t.asked, id)
	}
	t.change()
}

// current notes that a look at the wishes that began at the time has succeeded.
func (t *Tails) current(began time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard = began
}

// due returns the wishes that this process answers now, and whether it shows a tail. Wishes
// that have not been looked at for the ttl of their heartbeats are over.
func (t *Tails) due() (asked map[tailID]tailWish, shows bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.heard) < standingTTL {
		asked = maps.Clone(t.asked)
	}
	return asked, len(t.open) > 0
}

// Run answers the tails of other processes if this one works lanes, and hears their
// answers while it shows a tail, until ctx ends.
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
		asked, shows := t.due()
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
				parts.Go(func() { t.answer(on, id, &a.wish) })
			}
			a.wish.Store(&w)
		}
		switch {
		case shows && !hears:
			on, stop := context.WithCancel(ctx)
			stopHearing = stop
			parts.Go(func() { t.hear(on) })
			parts.Go(func() { t.followWorkers(on) })
		case !shows && hears:
			stopHearing()
			t.mu.Lock()
			t.workers, t.deaf = nil, nil
			t.mu.Unlock()
		}
		hears = shows
		var over <-chan time.Time
		if len(answers) > 0 { // their wishes may be over without a word
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

// answer sends this process's outcomes to the process that shows a tail, until ctx ends.
func (t *Tails) answer(ctx context.Context, id tailID, wish *atomic.Pointer[tailWish]) {
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
			if len(m.Events) < most { // else it need not be made
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
			if sent = time.Now(); err != nil { // the next message counts these
				m.Dropped += int64(len(m.Events))
			} else {
				m.Dropped = 0
			}
			m.Events, size = nil, 0
		}
	}
}

// hear takes the answers to the tails of this process until ctx ends.
func (t *Tails) hear(ctx context.Context) {
	set := func(err error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.deaf = err
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

// deliver hands a message to its tail, which must not hold the others up.
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
		o.missed.Add(int64(len(m.Events)) + m.Dropped)
	}
}

// followWorkers reads which processes have workers until ctx ends.
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
			t.standings.tellNow()
		}
		if !notify.Sleep(ctx, cardBeat) {
			return
		}
	}
}

// Subscribe implements server.Tail. Beside the outcomes of all processes it tells which
// processes they are of, and which do not answer.
func (t *Tails) Subscribe(ctx context.Context, f api.TailFilter) (<-chan api.Event, func() int64) {
	own, missed := t.own.Subscribe(ctx, f)
	o := &openTail{inbox: make(chan tailMessage, 64), wish: tailWish{Filter: f, Opened: time.Now().UnixMilli()}}
	t.mu.Lock()
	t.opened++
	o.name = fmt.Sprint(tailPrefix, t.opened)
	t.open[o.name] = o
	t.mu.Unlock()
	t.change()
	t.standings.tellNow()
	out := make(chan api.Event, 1024)
	go func() {
		defer close(out)
		s := &shownTail{t: t, o: o, out: out, dropped: map[string]int64{}, answers: map[string]*tailAnswers{}, names: map[string]string{t.owner: t.name}}
		s.run(own)
		t.mu.Lock()
		delete(t.open, o.name)
		t.mu.Unlock()
		t.change()
		t.standings.tellNow()
	}()
	return out, func() int64 { return missed() + o.missed.Load() }
}

// shownTail puts the outcomes of all processes together. One goroutine has it.
type shownTail struct {
	t       *Tails
	o       *openTail
	out     chan<- api.Event
	names   map[string]string // of processes, by owner
	answers map[string]*tailAnswers
	dropped map[string]int64 // outcomes that the bounds left out, by owner, not told yet
	told    string           // the processes that were told last
}

// tailAnswers is what is known of a process that is to answer.
type tailAnswers struct {
	last time.Time // its last message; before the first one, when it was listed
	any  bool
}

// run ends when own is closed.
func (s *shownTail) run(own <-chan api.Event) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case e, ok := <-own:
			if !ok {
				return
			}
			s.show(&e, s.t.owner)
			continue // nothing else has changed
		case m := <-s.o.inbox:
			a := s.answers[m.Owner]
			if a == nil {
				a = &tailAnswers{}
				s.answers[m.Owner] = a
			}
			if s.names[m.Owner] == "" {
				s.names[m.Owner] = m.Name
			}
			first := !a.any
			a.last, a.any = time.Now(), true
			for _, raw := range m.Events {
				var e api.Event
				// A filter binds whatever comes: it is what the caller may see.
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
	if !s.try(e) {
		s.o.missed.Add(1)
	}
}

// try reports whether there was room for an event.
func (s *shownTail) try(e *api.Event) bool {
	select {
	case s.out <- *e:
		return true
	default:
		return false
	}
}

func (s *shownTail) tellDropped() {
	for owner, n := range s.dropped {
		if s.try(&api.Event{Type: api.EventGap, At: time.Now().UTC(), Process: s.names[owner], Dropped: n}) {
			delete(s.dropped, owner)
		}
	}
}

// tellProcesses tells which processes the outcomes are of, once it is known of all, and
// whenever it has changed.
func (s *shownTail) tellProcesses() {
	e := api.Event{Type: api.EventProcesses, At: time.Now().UTC(), Processes: []string{}}
	if !s.roster(&e) {
		return
	}
	said := strings.Join(e.Processes, " ")
	for i := range e.Missing {
		said += " -" + e.Missing[i].Name
	}
	if said != s.told && s.try(&e) {
		s.told = said
	}
}

// roster adds to e the processes that answer and the others. It returns false while
// it is not known of one of them.
func (s *shownTail) roster(e *api.Event) bool {
	s.t.mu.Lock()
	workers, deaf := s.t.workers, s.t.deaf
	s.t.mu.Unlock()
	if workers == nil {
		return false
	}
	others := ""
	switch {
	case s.o.crowded.Load():
		others = fmt.Sprintf("%d tails are open, or %d of this caller: this one shows the process that was asked alone", mostTails, mostCallerTails)
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
		case a.any:
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
