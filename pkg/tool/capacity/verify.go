package capacity

import (
	"fmt"
	"math"
	"time"
)

// Fleet is what an installation has and is set to. What is 0 is not known, and is not
// compared.
type Fleet struct {
	Push, Email, SMS FleetChannel

	APIs        int     // processes with the API
	CallerRate  float64 // requests a second that the caller with the highest rate may make
	Schedulers  int     // processes that release what is due
	TimerShards int     // partitions of a minute
	CatchUpRate float64 // timers a second released of a backlog
}

// FleetChannel is a channel of a Fleet.
type FleetChannel struct {
	Workers     int // processes that call its provider
	Partitions  int
	InFlight    int           // requests at once of a worker: of those with the fewest
	Window      int           // receivers of a claim window, likewise
	Connections int           // HTTP/2 connections of a worker, likewise
	Accounts    int           // SMS accounts, or IP pools
	AccountRate float64       // messages a second of each
	Parallel    int           // requests at once of each, over all workers
	Latency     time.Duration // of a call, measured
}

// Comparison is one place where a sheet and a Fleet can contradict each other.
type Comparison struct {
	Check       string `json:"check"`
	Needs       string `json:"needs"`
	Has         string `json:"has"`
	Says        string `json:"says"` // ok, what is not known, or what to change
	Contradicts bool   `json:"contradicts"`
}

// Verify compares what a load needs with what there is. lasting counts for a load that
// does not end, where the sheet has two counts. It returns the error of Input.Check.
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
	v.rest()
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

// least compares a figure that must not be below a need. unit follows both; change says
// what to do where it is.
func (v *verifier) least(check string, needs, has float64, unit, change string) {
	c := Comparison{Check: check, Needs: Number(needs) + unit, Has: Number(has) + unit, Says: "ok"}
	switch {
	case needs == 0:
	case has == 0:
		c.Has, c.Says = "-", "not known"
	case has < needs*(1-1e-9):
		c.Says, c.Contradicts = change, true
	}
	v.out = append(v.out, c)
}

// most compares a figure that must not be above a bound; 0: there is no bound known.
func (v *verifier) most(check string, bound, has float64, unit, change string) {
	c := Comparison{Check: check, Needs: "at most " + Number(bound) + unit, Has: Number(has) + unit, Says: "ok"}
	switch {
	case bound == 0:
		c.Needs, c.Says = "-", "not known"
	case has == 0:
		c.Has, c.Says = "-", "not known"
	case has > bound*(1+1e-9):
		c.Says, c.Contradicts = change, true
	}
	v.out = append(v.out, c)
}

// count is how many of a part the load needs.
func (v *verifier) count(key string) float64 {
	l := v.sheet.Line(key)
	if v.lasting {
		return float64(l.Sustained)
	}
	return float64(l.Count)
}

// perWorker is the requests a second of each worker of a channel, at the count that is
// there, or else at the sheet's.
func (v *verifier) perWorker(demand float64, c *FleetChannel, key string) float64 {
	workers := float64(c.Workers)
	if workers == 0 {
		workers = math.Max(v.count(key), 1)
	}
	return demand / workers
}

// workers compares workers and partitions: a worker without a partition has no work.
func (v *verifier) workers(name string, c *FleetChannel, key string) {
	v.least(name+" workers", v.count(key), float64(c.Workers), "", "start more processes with the role worker:"+name)
	needs := math.Max(v.count("partitions_"+name), float64(c.Workers))
	v.least(name+" partitions", needs, float64(c.Partitions), "", fmt.Sprintf("raise log.partitions.%s, to a multiple: a worker needs a partition", name))
}

func (v *verifier) push() {
	in, c := v.in, &v.f.Push
	v.workers("push", c, "push_workers")
	under := v.perWorker(in.calls(in.Push), c, "push_workers") * in.PushLatency.Seconds()
	how := fmt.Sprintf(": a worker has rate x latency (%s) under way", in.PushLatency)
	v.least("push in_flight", math.Ceil(under), float64(c.InFlight), "", "raise workers.push.in_flight"+how)
	streams := float64(c.Connections) * in.PushStreams
	v.least("push connections x streams", math.Ceil(under), streams, "", "raise providers.apns.connections"+how)
	if streams > 0 {
		v.most("push in_flight at once", streams, float64(c.InFlight), "", "lower workers.push.in_flight or raise providers.apns.connections: the rest waits for a stream")
	}
	v.window("push", c)
}

// window compares the receivers of a claim window: a smaller one writes more rows than the
// sheet counts.
func (v *verifier) window(name string, c *FleetChannel) {
	if v.in.Fanout > 0 || !v.lasting {
		v.least(name+" window", math.Min(v.in.Window, v.in.Chunk), float64(c.Window), "", fmt.Sprintf("raise workers.%s.window: the sheet counts the rows of larger ones", name))
	}
}

func (v *verifier) sms() {
	in, c := v.in, &v.f.SMS
	v.workers("sms", c, "sms_workers")
	under := v.perWorker(in.texts(), c, "sms_workers") * in.SMSLatency.Seconds()
	v.least("sms in_flight", math.Ceil(under), float64(c.InFlight), "", fmt.Sprintf("raise workers.sms.in_flight: a worker has rate x latency (%s) under way", in.SMSLatency))
	v.least("sms accounts", ceilOf(in.texts(), c.AccountRate, in.SMSAccountRate), float64(c.Accounts), "", "add accounts to providers.twilio")
	v.most("sms account rate", in.SMSAccountRate, c.AccountRate, "/s", "lower providers.twilio.rate: the provider throttles more than this")
	v.least("sms account parallel", math.Ceil(c.AccountRate*in.SMSLatency.Seconds()), float64(c.Parallel), "",
		fmt.Sprintf("raise providers.twilio.parallel: an account has its rate x latency (%s) under way, else it does not reach its rate", in.SMSLatency))
}

// ceilOf is how many of a rate a demand needs; where the rate is not known, of another.
func ceilOf(demand, rate, other float64) float64 {
	if rate == 0 {
		rate = other
	}
	return float64(ceil(demand / rate))
}

func (v *verifier) email() {
	in, c := v.in, &v.f.Email
	v.most("email pool rate", in.MailIPRate*math.Max(in.MailIPsPerWorker, 1), c.AccountRate, "/s", "lower providers.sendgrid.rate: an IP may not send more")
	demand := in.mails()
	if !v.lasting {
		demand /= in.MailObjective.Seconds()
	}
	v.least("email pools", ceilOf(demand, c.AccountRate, in.MailIPRate), float64(c.Accounts), "", "add IP pools to providers.sendgrid")
	partitions := v.count("partitions_email")
	if v.lasting { // a worker feeds several pools
		partitions = 1
	}
	v.least("email partitions", math.Max(partitions, float64(c.Workers)), float64(c.Partitions), "", "raise log.partitions.email, to a multiple: a worker needs a partition")
	v.window("email", c)
}

func (v *verifier) rest() {
	in, f := v.in, v.f
	v.least("timer shards", v.count("timer_shards"), float64(f.TimerShards), "", "raise timers.shards and run notifyd migrate up: a shard takes the writes of its minute on one set of replicas")
	v.least("schedulers", v.count("release_owners"), float64(f.Schedulers), "", "start more processes with the role scheduler")
	v.most("catch-up rate", in.ReleaseRate*math.Max(float64(f.Schedulers), 1), f.CatchUpRate, "/s", "lower timers.catch_up_rate: schedulers do not release more")
	v.most("caller rate", in.APIRate*math.Max(float64(f.APIs), 1), f.CallerRate, "/s", "lower api.rate or the caller's, or start more API processes: one caller can take all of the API")
	if in.APIRate > 0 {
		v.least("API processes", v.count("api_servers"), float64(f.APIs), "", "start more processes with the role api")
	}
}

// Contradictions returns how many of some comparisons contradict.
func Contradictions(cs []Comparison) (n int) {
	for i := range cs {
		if cs[i].Contradicts {
			n++
		}
	}
	return n
}

// String says what contradicts in a line.
func (c *Comparison) String() string {
	return fmt.Sprintf("%s: needs %s, has %s: %s", c.Check, c.Needs, c.Has, c.Says)
}
