package capacity

import (
	"fmt"
	"math"
	"time"
)

// Fleet contains the parts and settings of an installation. 0 means unknown; such a value is not
// compared.
type Fleet struct {
	Push, Email, SMS FleetChannel

	APIs        int     // processes with the API
	CallerRate  float64 // requests per second that the caller with the highest rate may make
	Schedulers  int     // processes that release due timers
	TimerShards int     // partitions per minute
	CatchUpRate float64 // timers per second that may be released from a backlog
}

// FleetChannel is a channel of a Fleet.
type FleetChannel struct {
	Workers     int // processes that call the channel's provider
	Partitions  int
	InFlight    int           // concurrent requests of the worker with the lowest setting
	Window      int           // receivers of a claim window, of the worker with the lowest setting
	Connections int           // HTTP/2 connections of the worker with the lowest setting
	Accounts    int           // SMS accounts, or IP pools
	AccountRate float64       // messages per second of each account
	Parallel    int           // concurrent requests of each account, over all workers
	Latency     time.Duration // measured duration of a call
}

// Comparison compares one requirement of a sheet with a Fleet.
type Comparison struct {
	Check       string `json:"check"`
	Needs       string `json:"needs"`
	Has         string `json:"has"`
	Says        string `json:"says"` // "ok", "unknown", or the change to make
	Contradicts bool   `json:"contradicts"`
}

// Verify compares the requirements of a load with an installation. If lasting is true, it uses the
// sheet's counts for a load that lasts. It returns the error of Input.Check.
func Verify(in Input, f *Fleet, lasting bool) ([]Comparison, error) {
	if l := f.Push.Latency; l > 0 {
		in.PushLatency = l
	}
	s, err := Compute(in)
	if err != nil {
		return nil, err
	}
	v := &verifier{in: &in, f: f, sheet: &s, lasting: lasting}
	v.push()
	v.sms()
	v.email()
	v.timersAndCallers()
	return v.out, nil
}

// verifier collects comparisons.
type verifier struct {
	in      *Input
	f       *Fleet
	sheet   *Sheet
	lasting bool
	out     []Comparison
}

// requireAtLeast adds a comparison of a figure (the parameter has) that must not be less than the
// parameter needs. The unit is appended to both numbers. The parameter change says what to do if
// the figure is too low.
func (v *verifier) requireAtLeast(check string, needs, has float64, unit, change string) {
	c := Comparison{Check: check, Needs: Number(needs) + unit, Has: Number(has) + unit, Says: "ok"}
	switch {
	case needs == 0:
	case has == 0:
		c.Has, c.Says = "-", "unknown"
	case has < needs*(1-1e-9):
		c.Says, c.Contradicts = change, true
	}
	v.out = append(v.out, c)
}

// requireAtMost adds a comparison of a figure (the parameter has) that must not be greater than the
// parameter bound. A bound of 0 is unknown.
func (v *verifier) requireAtMost(check string, bound, has float64, unit, change string) {
	c := Comparison{Check: check, Needs: "at most " + Number(bound) + unit, Has: Number(has) + unit, Says: "ok"}
	switch {
	case bound == 0:
		c.Needs, c.Says = "-", "unknown"
	case has == 0:
		c.Has, c.Says = "-", "unknown"
	case has > bound*(1+1e-9):
		c.Says, c.Contradicts = change, true
	}
	v.out = append(v.out, c)
}

// neededCount returns how many of the part with this key the load needs.
func (v *verifier) neededCount(key string) float64 {
	l := v.sheet.Line(key)
	if v.lasting {
		return float64(l.Sustained)
	}
	return float64(l.Count)
}

// perWorker returns the requests per second of each worker of a channel. It divides the demand by
// the number of existing workers, or by the number in the sheet if the existing number is unknown.
func (v *verifier) perWorker(demand float64, c *FleetChannel, key string) float64 {
	workers := float64(c.Workers)
	if workers == 0 {
		workers = math.Max(v.neededCount(key), 1)
	}
	return demand / workers
}

// compareWorkers compares the numbers of workers and partitions of a channel. There must be a
// partition for each worker, because a worker without a partition has no work.
func (v *verifier) compareWorkers(name string, c *FleetChannel, key string) {
	v.requireAtLeast(name+" workers", v.neededCount(key), float64(c.Workers), "", "start more processes with the role worker:"+name)
	needs := math.Max(v.neededCount("partitions_"+name), float64(c.Workers))
	v.requireAtLeast(name+" partitions", needs, float64(c.Partitions), "", fmt.Sprintf("raise log.partitions.%s, to a multiple of its value: each worker needs a partition", name))
}

func (v *verifier) push() {
	in, c := v.in, &v.f.Push
	v.compareWorkers("push", c, "push_workers")
	under := v.perWorker(in.calls(in.Push), c, "push_workers") * in.PushLatency.Seconds()
	how := fmt.Sprintf(": a worker has rate x latency (%s) calls under way", in.PushLatency)
	v.requireAtLeast("push in_flight", math.Ceil(under), float64(c.InFlight), "", "raise workers.push.in_flight"+how)
	streams := float64(c.Connections) * in.PushStreams
	v.requireAtLeast("push connections x streams", math.Ceil(under), streams, "", "raise providers.apns.connections"+how)
	if streams > 0 {
		v.requireAtMost("push in_flight at once", streams, float64(c.InFlight), "", "lower workers.push.in_flight or raise providers.apns.connections: other calls wait for a stream")
	}
	v.compareWindow("push", c)
}

// compareWindow compares the size of the claim windows with the sheet. With smaller windows, more
// rows are written than the sheet counts.
func (v *verifier) compareWindow(name string, c *FleetChannel) {
	if v.in.Fanout > 0 || !v.lasting {
		v.requireAtLeast(name+" window", math.Min(v.in.Window, v.in.Chunk), float64(c.Window), "", fmt.Sprintf("raise workers.%s.window: the sheet assumes larger windows, which need fewer rows", name))
	}
}

func (v *verifier) sms() {
	in, c := v.in, &v.f.SMS
	v.compareWorkers("sms", c, "sms_workers")
	under := v.perWorker(in.smsCalls(), c, "sms_workers") * in.SMSLatency.Seconds()
	v.requireAtLeast("sms in_flight", math.Ceil(under), float64(c.InFlight), "", fmt.Sprintf("raise workers.sms.in_flight: a worker has rate x latency (%s) calls under way", in.SMSLatency))
	v.requireAtLeast("sms accounts", countFor(in.smsCalls(), c.AccountRate, in.SMSAccountRate), float64(c.Accounts), "", "add accounts to providers.twilio")
	v.requireAtMost("sms account rate", in.SMSAccountRate, c.AccountRate, "/s", "lower providers.twilio.rate: the provider throttles more than this")
	v.requireAtLeast("sms account parallel", math.Ceil(c.AccountRate*in.SMSLatency.Seconds()), float64(c.Parallel), "",
		fmt.Sprintf("raise providers.twilio.parallel: to reach its rate, an account needs rate x latency (%s) calls under way", in.SMSLatency))
}

// countFor returns how many parts are needed for a demand if each part has the given rate. If the
// rate is 0 (unknown), countFor uses the parameter fallback instead.
func countFor(demand, rate, fallback float64) float64 {
	if rate == 0 {
		rate = fallback
	}
	return float64(ceil(demand / rate))
}

func (v *verifier) email() {
	in, c := v.in, &v.f.Email
	v.requireAtMost("email pool rate", in.MailIPRate*math.Max(in.MailIPsPerWorker, 1), c.AccountRate, "/s", "lower providers.sendgrid.rate: an IP may not send more")
	demand := in.mailCalls()
	if !v.lasting {
		demand /= in.MailObjective.Seconds()
	}
	v.requireAtLeast("email pools", countFor(demand, c.AccountRate, in.MailIPRate), float64(c.Accounts), "", "add IP pools to providers.sendgrid")
	partitions := v.neededCount("partitions_email")
	if v.lasting { // one partition is enough, because a worker serves several pools
		partitions = 1
	}
	v.requireAtLeast("email partitions", math.Max(partitions, float64(c.Workers)), float64(c.Partitions), "", "raise log.partitions.email, to a multiple of its value: each worker needs a partition")
	v.compareWindow("email", c)
}

func (v *verifier) timersAndCallers() {
	in, f := v.in, v.f
	v.requireAtLeast("timer shards", v.neededCount("timer_shards"), float64(f.TimerShards), "", "raise timers.shards and run notifyd migrate up: one set of replicas takes all writes of a shard's minute")
	v.requireAtLeast("schedulers", v.neededCount("release_owners"), float64(f.Schedulers), "", "start more processes with the role scheduler")
	v.requireAtMost("catch-up rate", in.ReleaseRate*math.Max(float64(f.Schedulers), 1), f.CatchUpRate, "/s", "lower timers.catch_up_rate: the schedulers cannot release more")
	v.requireAtMost("caller rate", in.APIRate*math.Max(float64(f.APIs), 1), f.CallerRate, "/s", "lower api.rate or the caller's, or start more API processes: one caller can take all of the API")
	if in.APIRate > 0 {
		v.requireAtLeast("API processes", v.neededCount("api_servers"), float64(f.APIs), "", "start more processes with the role api")
	}
}

// Contradictions returns how many comparisons have Contradicts set.
func Contradictions(cs []Comparison) (n int) {
	for i := range cs {
		if cs[i].Contradicts {
			n++
		}
	}
	return n
}

// String returns the comparison as one line.
func (c *Comparison) String() string {
	return fmt.Sprintf("%s: needs %s, has %s: %s", c.Check, c.Needs, c.Has, c.Says)
}
