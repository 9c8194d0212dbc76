package simulator

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"
)

// call is one request, once its handler has understood it.
type call struct {
	provider  Provider
	account   string // Twilio account SID
	pool      string // SendGrid ip_pool_name
	receivers []receiver
	content   content // for the inbox

	// fault is the answer that a Fail rule asks for, in the provider's form.
	fault func(r *Rule, now time.Time) answer
	// taken, if set, is called once the request has been taken: it plans the
	// receipts. receipt is the Code of a Receipt rule that picked the request.
	taken func(receipt *Rule)
}

// receiver is one recipient of a call.
type receiver struct {
	address string
	id      string // our notification id
	attempt string // provider-side id
	user    string
	seq     uint64
	own     *personalization // what a mail says to this one alone; nil: nothing
}

// answer is what goes back. Its status says whether the provider took the request.
type answer struct {
	status int
	header http.Header // nil: none
	body   []byte
}

func (a answer) ok() bool { return a.status < 300 }

// settle decides what becomes of a call whose protocol-level answer would be a,
// writes it to the ledger, and answers.
func settle(s *Simulator, w http.ResponseWriter, r *http.Request, c *call, a answer) {
	c.content.parent, c.content.state = r.Header.Get("Traceparent"), r.Header.Get("Tracestate")
	p := s.rules.decide(c)
	now := s.now()
	silent := false
	outcome := Rejected
	if p.fault != nil {
		switch p.fault.Do {
		case Fail:
			a = c.fault(p.fault, now)
		case Gateway:
			if a.ok() {
				outcome = Ambiguous
			}
			a = c.fault(p.fault, now)
		case Drop, Refuse:
			silent = true
			a.status = 0
		case Reset, ResetStream, Hang, CloseConn:
			silent = true
			if a.ok() {
				outcome = Ambiguous
			}
		}
	}
	if !silent && a.ok() {
		outcome = Accepted
	}
	write(s, c, a, outcome, silent, now)
	if outcome.taken() && c.taken != nil {
		c.taken(p.receipt)
	}
	deliver(s, w, r, c, a, p)
}

// write puts the call's receivers into the ledger and the inbox.
func write(s *Simulator, c *call, a answer, outcome Outcome, silent bool, now time.Time) {
	if c.provider > providers {
		return
	}
	status := a.status
	if silent {
		status = 0
	}
	s.ledger.request(c.provider)
	for i := range c.receivers {
		v := &c.receivers[i]
		s.ledger.record(&entry{
			at: now.UnixNano(), provider: c.provider, outcome: outcome, status: status,
			id: v.id, attempt: v.attempt, addr: addrHash(v.address), user: v.user, userSeq: v.seq,
		})
	}
	s.inbox.add(c, status, outcome, now)
}

// deliver waits out the latency and answers, or does not, as planned.
func deliver(s *Simulator, w http.ResponseWriter, r *http.Request, c *call, a answer, p plan) {
	l := *s.latency[c.provider].Load()
	if p.latency != nil {
		l = p.latency.Latency
	}
	var fault Action
	if p.fault != nil {
		fault = p.fault.Do
	}
	switch fault {
	case Refuse:
		panic(errRefuse)
	case GoAway:
		connOf(r.Context()).wire.goAway()
	case Hang:
		select {
		case <-r.Context().Done():
		case <-s.stopping:
		}
		panic(http.ErrAbortHandler)
	}
	if !wait(r.Context(), s.stopping, l.at(unit(mix(s.seed, s.drawn.Add(1))))) {
		panic(http.ErrAbortHandler)
	}
	switch fault {
	case Reset, Drop:
		connOf(r.Context()).reset()
		panic(http.ErrAbortHandler)
	case CloseConn:
		connOf(r.Context()).wire.close()
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case ResetStream:
		panic(http.ErrAbortHandler)
	}
	for k, v := range a.header {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	if fault == Drip {
		drip(r.Context(), s, w, a.body, time.Duration(p.fault.Latency.Median))
		return
	}
	_, _ = w.Write(a.body) // the caller left: its affair
}

// drip sends the headers at once and the body byte by byte over d; an answer
// without a body ends after d.
func drip(ctx context.Context, s *Simulator, w http.ResponseWriter, body []byte, d time.Duration) {
	rc := http.NewResponseController(w)
	step := d / time.Duration(max(1, len(body)))
	for i := range max(1, len(body)) {
		if rc.Flush() != nil || !wait(ctx, s.stopping, step) {
			panic(http.ErrAbortHandler)
		}
		if i < len(body) {
			_, _ = w.Write(body[i : i+1])
		}
	}
}

// setRetryAfter adds the header in whole seconds, rounded up, when d is positive.
func setRetryAfter(h http.Header, d time.Duration) {
	if d > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(d.Seconds()))))
	}
}

func jsonHeader() http.Header { return http.Header{"Content-Type": {"application/json"}} }
