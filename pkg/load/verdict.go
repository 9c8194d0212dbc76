package load

import (
	"fmt"
	"time"
)

// Evidence is what the verdict follows from.
type Evidence struct {
	Intended, Sent, Failed int64
	Messages               int64         // with a latency
	Sending                time.Duration // of phases that are no warm-up
	Busy                   float64       // share of the workers' time that they waited for answers, 0 to 1
	Late                   int           // seconds in which the generator woke late, see lateWake
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
}

// Limits of the verdict. Each is a judgement; together they are printed with the
// reasons.
const (
	sentEnough   = 0.99                  // share of what was intended that must be sent
	shareMost    = 0.8                   // of the calibrated rate
	busyFull     = 0.9                   // of the workers' time: they wait for the server
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
func Judge(e *Evidence) Verdict {
	var v Verdict
	say := func(code, format string, args ...any) {
		if v.Code == "" {
			v.Code = code
		}
		if v.Code == code {
			v.Reasons = append(v.Reasons, fmt.Sprintf(format, args...))
		}
	}
	sent := 1.0
	if e.Intended > 0 {
		sent = float64(e.Sent) / float64(e.Intended)
	}
	// A server in the same process takes the same CPUs: what starves then is not
	// the generator alone.
	starved := !e.Embedded && e.Seconds > 0 && float64(e.Starved) > float64(e.Seconds)/2
	switch {
	case e.Share > 1:
		say(GeneratorBound, "the scenario asks for %.2f times what this machine generates without a server", e.Share)
	case e.Share > shareMost && !e.Closed:
		say(GeneratorBound, "generating takes %.0f%% of what this machine can, above %.0f%%", e.Share*100, shareMost*100)
	}
	if sent < sentEnough && e.Busy < busyFull {
		say(GeneratorBound, "%.1f%% of what was due was sent, while workers were free %.0f%% of the time", sent*100, (1-e.Busy)*100)
	}
	if e.Seconds > 0 && float64(e.Late) > lateSeconds*float64(e.Seconds) {
		say(GeneratorBound, "it woke late in %d of %d seconds (p99 %v in the worst)", e.Late, e.Seconds, e.WakeP99.Round(time.Millisecond))
	}
	if starved {
		say(GeneratorBound, "its process had all its CPUs busy in %d of %d seconds", e.Starved, e.Seconds)
	}
	if sent < sentEnough && e.Busy >= busyFull {
		say(SinkBound, "%.1f%% of what was due was sent: all workers waited for answers %.0f%% of the time", sent*100, e.Busy*100)
	}
	if e.BacklogSlope > slopeMost {
		say(SinkBound, "the backlog grew by %.0f%% of the rate to the end", e.BacklogSlope*100)
	}
	if e.Sent > 0 && float64(e.Failed)/float64(e.Sent) > failedMost {
		say(SinkBound, "%.1f%% failed or were rejected", 100*float64(e.Failed)/float64(e.Sent))
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
	if v.Code == "" {
		v.Code = Valid
	}
	return v
}

// late reports whether a second's wake-ups were late enough to colour its figures.
func late(wake, response time.Duration) bool { return wake > max(lateWake, response/10) }
