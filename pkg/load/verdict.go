package load

import (
	"cmp"
	"fmt"
	"time"
)

// Evidence is what the verdict follows from.
type Evidence struct {
	Intended, Sent, Failed int64
	Messages               int64         // with a latency
	Sending                time.Duration // of phases that are no warm-up
	Waiting                float64       // of the workers' time for requests, the share that they waited for answers, 0 to 1
	Late                   int           // seconds in which the generator woke late, see lateWake
	Queued                 int           // seconds in which it woke on time, and yet requests started late: no worker was free
	Seconds                int
	ResponseP99            time.Duration // of the run
	WakeP99                time.Duration // of the worst second
	Share                  float64       // intended rate / calibrated rate, the highest of a phase
	Starved                int           // seconds in which the process had all of its CPUs busy
	Embedded               bool          // with notifyd in the same process
	Steal                  float64       // mean share
	BacklogSlope           float64       // of the last third of sending, as a share of the rate acked
	Partial                bool
	LedgerLost             int64
	Closed                 bool   // no open-loop step
	Steered                string // what people did to its arrivals
	Agents                 []AgentEvidence
}

// AgentEvidence is what one agent says of itself as a generator, or that it was lost.
type AgentEvidence struct {
	Name, Lost string
	Own        Evidence
}

// Limits of the verdict. Each is a judgement; together they are printed with the
// reasons.
const (
	sentEnough   = 0.99                  // share of what was intended that must be sent
	shareMost    = 0.8                   // of the calibrated rate
	waitingFull  = 0.9                   // of the workers' time for requests: the rest is the generator's own work
	lateWake     = 20 * time.Millisecond // a wake-up later than this, and than a tenth of the response
	lateSeconds  = 0.1                   // share of such seconds
	stealMost    = 0.1
	slopeMost    = 0.05
	failedMost   = 0.01
	fewest       = 100 // messages
	shortest1    = time.Second
	starvedShare = 0.95 // of the CPUs
)

// Judge says whether the figures are the server's. The generator is looked at
// first: what it could not offer says nothing about the server.
//
// Requests that start late, or never, have one of three causes. The generator's CPU is
// used up, or it wakes late: GENERATOR_BOUND. Or every worker waits for an answer:
// CONCURRENCY_BOUND, where the server is slow, and not the generator. The response times
// count from when a request was due, so they hold the wait for a free worker, too.
func Judge(e *Evidence) Verdict {
	var v Verdict
	say := func(code, format string, args ...any) {
		v.Code = cmp.Or(v.Code, code)
		if v.Code == code {
			v.Reasons = append(v.Reasons, fmt.Sprintf(format, args...))
		}
	}
	for i := range e.Agents {
		if a := &e.Agents[i]; a.Lost != "" {
			say(Inconclusive, "agent %s %s", a.Name, a.Lost)
		}
	}
	for i := range e.Agents {
		a := &e.Agents[i]
		if own := Judge(&a.Own); own.Code == GeneratorBound {
			for _, why := range own.Reasons {
				say(GeneratorBound, "agent %s: %s", a.Name, why)
			}
		}
	}
	sent := 1.0
	if e.Intended > 0 {
		sent = float64(e.Sent) / float64(e.Intended)
	}
	queued := e.Seconds > 0 && float64(e.Queued) > lateSeconds*float64(e.Seconds)
	// usedUp: the server's answers took the workers' time, and not the generator's own work.
	usedUp := (sent < sentEnough || queued) && e.Waiting >= waitingFull
	// A server in the same process takes the same CPUs: what starves then is not
	// the generator alone.
	starved := !e.Embedded && e.Seconds > 0 && float64(e.Starved) > float64(e.Seconds)/2
	switch {
	case usedUp: // the rate that was asked for was never generated
	case e.Share > 1:
		say(GeneratorBound, "the scenario asks for %.2f times what this machine generates without a server", e.Share)
	case e.Share > shareMost && !e.Closed:
		say(GeneratorBound, "generating takes %.0f%% of what this machine can, above %.0f%%", e.Share*100, shareMost*100)
	}
	if sent < sentEnough && !usedUp {
		say(GeneratorBound, "%.1f%% of what was due was sent: the workers took %.0f%% of their time to make and start requests", sent*100, (1-e.Waiting)*100)
	}
	if e.Seconds > 0 && float64(e.Late) > lateSeconds*float64(e.Seconds) {
		say(GeneratorBound, "it woke late in %d of %d seconds (p99 %v in the worst)", e.Late, e.Seconds, e.WakeP99.Round(time.Millisecond))
	}
	if starved {
		say(GeneratorBound, "its process had all its CPUs busy in %d of %d seconds", e.Starved, e.Seconds)
	}
	if e.BacklogSlope > slopeMost {
		say(SinkBound, "the backlog grew by %.0f%% of the rate to the end", e.BacklogSlope*100)
	}
	if e.Sent > 0 && float64(e.Failed)/float64(e.Sent) > failedMost {
		say(SinkBound, "%.1f%% failed or were rejected", 100*float64(e.Failed)/float64(e.Sent))
	}
	if usedUp {
		code := ConcurrencyBound
		if v.Code == SinkBound {
			code = SinkBound // one more reason
		}
		text := fmt.Sprintf("requests started late in %d of %d seconds", e.Queued, e.Seconds)
		if sent < sentEnough {
			text = fmt.Sprintf("%.1f%% of what was due was sent", sent*100)
		}
		say(code, "%s: every worker waited for an answer (%.0f%% of its time); to offer more, raise workers", text, e.Waiting*100)
	}
	switch {
	case e.Messages < fewest:
		say(Inconclusive, "too few messages: %d", e.Messages)
	case e.Sending < shortest1:
		say(Inconclusive, "%v are too short", e.Sending.Round(time.Millisecond))
	}
	if e.Steal > stealMost {
		say(Inconclusive, "others took %.0f%% of the machine's time", e.Steal*100)
	}
	if e.Steered != "" {
		say(Inconclusive, "its arrivals were changed by hand: %s", e.Steered)
	}
	if e.Partial {
		say(Inconclusive, "it was stopped early")
	}
	v.Code = cmp.Or(v.Code, Valid)
	return v
}

// OfServer reports whether the figures are the server's.
func (v *Verdict) OfServer() bool {
	return v.Code == Valid || v.Code == SinkBound || v.Code == ConcurrencyBound
}

// late reports whether a second's wake-ups were late enough to colour its figures.
func late(wake, response time.Duration) bool { return wake > max(lateWake, response/10) }
