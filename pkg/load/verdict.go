package load

import (
	"cmp"
	"fmt"
	"time"
)

// Evidence holds the figures from which Judge derives the verdict.
type Evidence struct {
	Intended, Sent, Failed int64
	Messages               int64         // messages with a response time
	Sending                time.Duration // length of sending, without warm-ups
	// Waiting is the share of time, 0 to 1, in which workers waited for answers. Only time in which
	// the workers had due requests is counted.
	Waiting float64
	Late    int // seconds in which the generator woke late, see minLateWake
	// Queued is the number of seconds in which the generator woke on time, but requests started
	// late because no worker was free.
	Queued       int
	Seconds      int           // seconds that were measured
	ResponseP99  time.Duration // p99 of the whole run
	WakeP99      time.Duration // p99 of wake-ups in the worst second
	Share        float64       // intended rate / calibrated rate, in the second in which it was highest
	Starved      int           // seconds in which all CPUs of the process were busy
	Embedded     bool          // true: notifyd runs in the same process
	Steal        float64       // mean share of the machine's time that the hypervisor gave to other machines, 0 to 1
	BacklogSlope float64       // growth of the backlog in the last third of sending, as a share of the acknowledged rate
	Partial      bool          // true: the run was stopped early
	LedgerLost   int64
	Closed       bool   // true: all steps are closed loops
	Steered      string // text that describes changes by hand to the arrivals; empty: no changes
	Agents       []AgentEvidence
}

// AgentEvidence is the evidence about one agent as a generator. If the agent was lost, Lost says
// why.
type AgentEvidence struct {
	Name, Lost string
	Own        Evidence
}

// The limits of the verdict. They were chosen, not derived. Some reasons of a verdict print their
// limit.
const (
	minSentShare      = 0.99 // share of the intended messages that must be sent
	maxGeneratorShare = 0.8  // largest share of the calibrated rate
	// If workers with due requests wait for answers in at least this share of the time, the waiting
	// is the reason why no worker is free.
	minWaitingShare = 0.9
	// A wake-up is late if it is later than minLateWake and later than a tenth of the p99 of the
	// response times.
	minLateWake    = 20 * time.Millisecond
	maxLateShare   = 0.1 // share of seconds with late wake-ups
	maxSteal       = 0.1
	maxSlope       = 0.05
	maxFailedShare = 0.01
	minMessages    = 100 // messages
	minSending     = time.Second
	starvedShare   = 0.95 // share of the CPUs
)

// Judge decides whether the figures describe the server. It judges the generator first, because a
// load that was not sent shows nothing about the server.
//
// There are three reasons why requests start late or are never sent. First, the generator has used
// up its CPU. Second, the generator wakes late. In both cases the verdict is GENERATOR_BOUND.
// Third, every worker waits for an answer. Then the verdict is CONCURRENCY_BOUND: the server is
// slow, not the generator. Response times count from the due time, so they include the wait for a
// free worker.
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
	queued := e.Seconds > 0 && float64(e.Queued) > maxLateShare*float64(e.Seconds)
	// usedUp is true if no worker was free because the workers waited for the server, not because
	// the generator was slow.
	usedUp := (sent < minSentShare || queued) && e.Waiting >= minWaitingShare
	// A server in the same process uses the same CPUs. Then the CPUs may be busy although the
	// generator is not the limit.
	starved := !e.Embedded && e.Seconds > 0 && float64(e.Starved) > float64(e.Seconds)/2
	switch {
	case usedUp: // the intended rate was never sent, so Share, which is computed from it, shows nothing
	case e.Share > 1:
		say(GeneratorBound, "the scenario asks for %.2f times the rate that this machine generates without a server", e.Share)
	case e.Share > maxGeneratorShare && !e.Closed:
		say(GeneratorBound, "the scenario asks for %.0f%% of the rate that this machine generates without a server; the limit is %.0f%%", e.Share*100, maxGeneratorShare*100)
	}
	if sent < minSentShare && !usedUp {
		say(GeneratorBound, "%.1f%% of the due messages were sent: the workers took %.0f%% of their time to make and start requests", sent*100, (1-e.Waiting)*100)
	}
	if e.Seconds > 0 && float64(e.Late) > maxLateShare*float64(e.Seconds) {
		say(GeneratorBound, "it woke late in %d of %d seconds; in the worst second the p99 of the delays was %v", e.Late, e.Seconds, e.WakeP99.Round(time.Millisecond))
	}
	if starved {
		say(GeneratorBound, "its process had all its CPUs busy in %d of %d seconds", e.Starved, e.Seconds)
	}
	if e.BacklogSlope > maxSlope {
		say(SinkBound, "the backlog grew by %.0f%% of the accepted rate in the last third of sending", e.BacklogSlope*100)
	}
	if e.Sent > 0 && float64(e.Failed)/float64(e.Sent) > maxFailedShare {
		say(SinkBound, "%.1f%% of the sent messages failed or were rejected", 100*float64(e.Failed)/float64(e.Sent))
	}
	if usedUp {
		code := ConcurrencyBound
		if v.Code == SinkBound {
			code = SinkBound // add this reason to the existing verdict
		}
		text := fmt.Sprintf("requests started late in %d of %d seconds", e.Queued, e.Seconds)
		if sent < minSentShare {
			text = fmt.Sprintf("%.1f%% of the due messages were sent", sent*100)
		}
		say(code, "%s: every worker waited for an answer (%.0f%% of its time); to offer more, raise workers", text, e.Waiting*100)
	}
	switch {
	case e.Messages < minMessages:
		say(Inconclusive, "too few messages: %d; a verdict needs at least %d", e.Messages, minMessages)
	case e.Sending < minSending:
		say(Inconclusive, "the run sent messages for %v; a verdict needs at least %v", e.Sending.Round(time.Millisecond), minSending)
	}
	if e.Steal > maxSteal {
		say(Inconclusive, "the hypervisor gave %.0f%% of the machine's time to other machines (steal)", e.Steal*100)
	}
	if e.Steered != "" {
		say(Inconclusive, "the arrivals were changed by hand: %s", e.Steered)
	}
	if e.Partial {
		say(Inconclusive, "the run was stopped early")
	}
	v.Code = cmp.Or(v.Code, Valid)
	return v
}

// OfServer reports whether the figures describe the server.
func (v *Verdict) OfServer() bool {
	return v.Code == Valid || v.Code == SinkBound || v.Code == ConcurrencyBound
}

// isLateWake reports whether workers woke so late in a second that the figures of this second are
// distorted. The parameters wake and response are the p99 of wake-ups and of response times.
func isLateWake(wake, response time.Duration) bool { return wake > max(minLateWake, response/10) }
