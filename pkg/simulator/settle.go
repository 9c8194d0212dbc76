package simulator

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"
)

// providerCall is one request that the handler of its provider has parsed.
type providerCall struct {
	provider  Provider
	account   string // Twilio account SID
	pool      string // SendGrid ip_pool_name
	receivers []receiver
	content   content // for the inbox

	// fault returns the answer to a request that a Fail or Gateway rule has selected. Each provider
	// has its own format for it.
	fault func(r *Rule, now time.Time) providerAnswer
	// onTaken, if not nil, is called if the provider acts on the request. It schedules the
	// receipts. The parameter receipt is the Receipt rule that selected the request, or nil.
	onTaken func(receipt *Rule)
}

// receiver is one recipient of a providerCall.
type receiver struct {
	address  string
	id       string // notification id
	attempt  string // id of the attempt at the provider
	user     string
	seq      uint64
	personal *personalization // fields of the mail that apply only to this receiver; nil: there are no such fields
}

// providerAnswer is the answer to a request. A status below 300 means that the provider acts on the
// request.
type providerAnswer struct {
	status int
	header http.Header // nil: no headers
	body   []byte
}

func (a providerAnswer) ok() bool { return a.status < 300 }

// settleCall decides the outcome of a call, writes the outcome to the ledger, and answers. The
// parameter a is the answer that the provider gives if no rule changes it.
func settleCall(s *Simulator, w http.ResponseWriter, r *http.Request, c *providerCall, a providerAnswer) {
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
	recordCall(s, c, a, outcome, silent, now)
	if outcome.taken() && c.onTaken != nil {
		c.onTaken(p.receipt)
	}
	sendAnswer(s, w, r, c, a, p)
}

// recordCall writes the receivers of the call to the ledger and to the inbox. silent is true if the
// caller gets no answer.
func recordCall(s *Simulator, c *providerCall, a providerAnswer, outcome Outcome, silent bool, now time.Time) {
	if c.provider > receiverProviders {
		return
	}
	status := a.status
	if silent {
		status = 0
	}
	s.ledger.countRequest(c.provider)
	for i := range c.receivers {
		v := &c.receivers[i]
		s.ledger.recordEntry(&ledgerEntry{
			at: now.UnixNano(), provider: c.provider, outcome: outcome, status: status,
			id: v.id, attempt: v.attempt, addr: addrHash(v.address), user: v.user, userSeq: v.seq,
		})
	}
	s.inbox.addCall(c, status, outcome, now)
}

// sendAnswer waits for the latency and then answers, unless the fault in p requires something else.
// To end a request without an answer, it panics with http.ErrAbortHandler.
func sendAnswer(s *Simulator, w http.ResponseWriter, r *http.Request, c *providerCall, a providerAnswer, p faultPlan) {
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
	if !sleepOrStop(r.Context(), s.stopping, l.atQuantile(unitInterval(mixHash(s.seed, s.drawn.Add(1))))) {
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
	_, _ = w.Write(a.body) // an error means that the caller has closed the connection
}

// drip sends the headers at once, and then the body byte by byte, spread over the time d. If there
// is no body, the answer ends after the time d.
func drip(ctx context.Context, s *Simulator, w http.ResponseWriter, body []byte, d time.Duration) {
	rc := http.NewResponseController(w)
	step := d / time.Duration(max(1, len(body)))
	for i := range max(1, len(body)) {
		if rc.Flush() != nil || !sleepOrStop(ctx, s.stopping, step) {
			panic(http.ErrAbortHandler)
		}
		if i < len(body) {
			_, _ = w.Write(body[i : i+1])
		}
	}
}

// setRetryAfter sets the header Retry-After to d in whole seconds, rounded up. If d is not
// positive, it does nothing.
func setRetryAfter(h http.Header, d time.Duration) {
	if d > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(d.Seconds()))))
	}
}

func jsonHeader() http.Header { return http.Header{"Content-Type": {"application/json"}} }
