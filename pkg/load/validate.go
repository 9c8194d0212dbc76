package load

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// expectDuplicates is a word that Scenario.Expect may contain in addition to states.
const expectDuplicates = "duplicates"

// scenarioChecker keeps the first error that it finds.
type scenarioChecker struct{ err error }

func (c *scenarioChecker) check(ok bool, field, format string, args ...any) {
	if c.err == nil && !ok {
		c.err = notify.Invalid(codeScenario, field, fmt.Sprintf(format, args...))
	}
}

// Validate checks a scenario whose defaults are filled in. It returns an error of
// notify.KindInvalid for the first mistake. The error names the field.
func (s *Scenario) Validate() error {
	var c scenarioChecker
	names, phases := map[string]string{}, map[string]bool{}
	c.check(len(s.Phases) > 0, "phases", "must hold at least one phase")
	for i := range s.Phases {
		p := &s.Phases[i]
		at := fmt.Sprintf("phases[%d]", i)
		c.check(p.Name != "" && !strings.ContainsAny(p.Name, "{},= "), at+".name", "must be one word: without spaces and without { } , =")
		c.check(!phases[p.Name], at+".name", "%q is the name of two phases", p.Name)
		phases[p.Name] = true
		c.check(len(p.Steps) > 0 || p.Duration > 0, at+".duration", "is required for a phase without steps")
		inPhase := map[string]bool{}
		for j := range p.Steps {
			where := fmt.Sprintf("%s.steps[%d]", at, j)
			st := &p.Steps[j]
			c.check(!inPhase[st.Name], where+".name", "two steps of a phase are called %q", st.Name)
			inPhase[st.Name] = true
			if was, ok := names[st.Name]; ok {
				c.check(was == st.Target, where+".target", "must be %s, because step %q has this target in another phase", was, st.Name)
			}
			names[st.Name] = st.Target
			st.validate(&c, where, p)
		}
		for j := range p.Faults {
			where := fmt.Sprintf("%s.faults[%d]", at, j)
			p.Faults[j].validate(&c, where, s, p)
			for k := range p.Faults[:j] {
				c.check(!p.Faults[j].overlaps(&p.Faults[k]), where+".at", "faults[%d] is active at the same time; only one fault of the process may be active at a time", k)
			}
		}
	}
	s.Server.validate(&c)
	conditions := func(field string, list []Threshold) {
		for i, t := range list {
			cond, err := ParseThreshold(t.Expr)
			if err == nil {
				err = cond.checkNames(names, phases)
			}
			if c.err == nil && err != nil {
				c.err = notify.Invalid(codeScenario, fmt.Sprintf("%s[%d]", field, i), err.Error())
			}
		}
	}
	conditions("thresholds", s.Thresholds)
	if o := s.Objective; o != nil {
		c.check(o.Step == "" || names[o.Step] != "", "objective.step", "no step is called %q", o.Step)
		c.check(o.Within >= 0 && o.Within < 1, "objective.within", "must be a share from 0 to below 1")
		c.check(o.Most == 0 || o.Most >= o.From, "objective.most", "must not be below objective.from")
		conditions("objective.holds", o.Holds)
	}
	for i, e := range s.Expect {
		_, ok := notify.ParseState(e)
		c.check(ok || e == expectDuplicates, fmt.Sprintf("expect[%d]", i), "no state is called %q", e)
	}
	if sh := s.Short; sh != nil {
		c.check(sh.Rate >= 0 && sh.Time >= 0 && sh.Count >= 0, "short", "the factors rate, time and count must not be below 0")
	}
	return c.err
}

func (s *Step) validate(c *scenarioChecker, at string, p *PhaseSpec) {
	c.check(s.Name != "" && !strings.ContainsAny(s.Name, "{},= "), at+".name", "must be one word: without spaces and without { } , =")
	c.check(slices.Contains(targets, s.Target), at+".target", "%q is not one of %s", s.Target, strings.Join(targets, ", "))
	c.check(s.As == "" || s.Target == Null && (s.As == Single || s.As == Batch || s.As == Fanout), at+".as", "is only for target null, and must be http-single, http-batch or http-fanout")
	c.check(s.Count > 0 || p.Duration > 0, at+".count", "is required for a step if its phase has no duration")
	c.check(s.Start == 0 || s.Start < p.Duration, at+".start", "must be before the end of the phase")
	kind := s.bodies()
	switch kind {
	case Single, Schedule, Trigger:
		c.check(s.Size == 1, at+".size", "must be 1: a request of %s has one message", kind)
	case Batch, Kafka:
		c.check(s.Size >= 1 && s.Size <= 1000, at+".size", "must be from 1 to 1,000 messages a request")
	}
	c.check(s.Size >= 1, at+".size", "must be at least 1")
	c.check(s.Workers >= 1 && s.Workers <= 100_000, at+".workers", "must be from 1 to 100,000")
	shares := s.Mix
	if len(shares) == 0 {
		shares = []Share{{1, s.Channel, s.Category}}
	}
	c.check(len(s.Mix) == 0 || s.Channel == "" && s.Category == "", at+".mix", "replaces channel and category: set either mix, or channel and category")
	for _, m := range shares {
		_, ok := notify.ParseChannel(m.Channel)
		c.check(ok, at+".channel", "no channel is called %q", m.Channel)
		_, ok = notify.ParseCategory(m.Category)
		c.check(ok, at+".category", "no category is called %q", m.Category)
		c.check(m.Weight > 0, at+".mix", "each weight must be above 0")
	}
	u := &s.Users
	c.check(u.Count >= 1 && u.Count <= maxUsers, at+".users", "must be from 1 to 100M")
	c.check(slices.Contains([]string{"each", "uniform", "zipf", "hot"}, u.Pick), at+".users.pick", "must be \"each\", \"uniform\", \"zipf\" or \"hot\", not %q", u.Pick)
	c.check(u.Skew >= 0 && u.Skew < 10, at+".users.skew", "must be from 0 to below 10")
	c.check(u.Share >= 0 && u.Share <= 1, at+".users.share", "must be from 0 to 1")
	if kind == Fanout {
		c.check(float64(s.Size) <= float64(u.Count), at+".users", "must be at least %d, the size of the step: a fan-out must not have a user twice", s.Size)
		c.check(u.Pick == "each", at+".users.pick", "must be \"each\": a fan-out must not have a user twice")
	}
	pl := &s.Payload
	c.check(pl.Bytes >= 0 && pl.Bytes <= 16<<10 && pl.Max <= 16<<10 && (pl.Max == 0 || pl.Max >= pl.Bytes), at+".payload", "must be 0 to 16,384 bytes long, and max must not be below bytes")
	c.check(pl.Text == "" || pl.Bytes == 0 && pl.Max == 0, at+".payload", "must have either a text or a length, not both")
	c.check(!s.Ordered || s.Target == Single && int64(u.Count)%int64(max(s.Workers, 1)) == 0 && u.Pick == "each" && s.Triggers == 0, at+".ordered",
		"needs the target http-single, users.pick \"each\", no triggers, and a number of users that is a multiple of workers")
	c.check(s.Triggers >= 0 && s.Triggers <= 1 && (s.Triggers == 0 || kind == Single), at+".triggers", "must be a share from 0 to 1, and needs the target http-single")
	if l := s.Scheduled; l != nil {
		c.check(l.Share > 0 && l.Share <= 1, at+".scheduled.share", "must be above 0 and at most 1")
		c.check(kind != Kafka, at+".scheduled", "is not possible with the target kafka: only the API schedules messages, and the topics hold only messages that are due")
	}
	s.Arrival.validate(c, at+".arrival", p)
}

func (a *Arrival) validate(c *scenarioChecker, at string, p *PhaseSpec) {
	shapes := []string{"", "constant", "poisson", "ramp", "steps", "spike", "sine", "trace"}
	c.check(slices.Contains(shapes, a.Shape), at, "%q is not one of %s", a.Shape, strings.Join(shapes[1:], ", "))
	switch a.Shape {
	case "constant", "poisson":
		c.check(a.Rate > 0, at+".rate", "must be above 0")
	case "ramp":
		c.check(a.From+a.To > 0, at+".to", "must be above 0 if from is 0")
		c.check(a.Over > 0 || p.Duration > 0, at+".over", "is required if the phase has no duration; it is the length of the ramp")
	case "steps":
		c.check(len(a.Levels) > 0, at+".levels", "must hold at least one level")
		for _, l := range a.Levels {
			c.check(l.For > 0, at+".levels", "each level needs the field \"for\", a length of time")
		}
	case "spike":
		c.check(a.Peak > 0, at+".peak", "must be above 0")
	case "sine":
		c.check(a.Peak >= a.Rate && a.Peak > 0, at+".peak", "must be above 0 and not below the rate")
		c.check(a.Period > 0 || p.Duration > 0, at+".period", "is required if the phase has no duration; it is the length of a wave")
	case "trace":
		c.check(a.File != "", at+".file", "must name the file of the trace")
		c.check(a.Factor > 0 && a.Factor <= 1000, at+".factor", "must be above 0 and at most 1,000")
	}
}

func (f *FaultSpec) validate(c *scenarioChecker, at string, s *Scenario, p *PhaseSpec) {
	n := 0
	for _, v := range []string{f.Process, f.Do, f.Action} {
		if v != "" {
			n++
		}
	}
	c.check(n > 0, at+".do", "a fault must have one of the fields \"process\", \"do\" and \"action\"")
	c.check(n < 2, at+".process", "a fault must have only one of the fields \"process\", \"do\" and \"action\"")
	c.check(f.Action == "" || f.Action == "replay", at+".action", "must be \"replay\", not %q", f.Action)
	c.check(f.Process == "" || slices.Contains([]string{"kill", "pause", "stop"}, f.Process), at+".process", "must be \"kill\", \"pause\" or \"stop\", not %q", f.Process)
	c.check(f.Process == "" || s.Server.Mode == "process", at+".process", "needs server.mode process: faults may affect only a process that the run started")
	c.check(p.Duration == 0 || f.At < p.Duration, at+".at", "must be before the end of the phase")
	c.check(f.Share >= 0 && f.Share <= 1, at+".share", "must be above 0 and at most 1")
	c.check(f.Do != "latency" && f.Do != "drip" || f.Latency.Median > 0, at+".latency", "needs a median if do is \"latency\" or \"drip\"; p99 is optional")
	c.check(f.Latency.P99 == 0 || f.Latency.P99 >= f.Latency.Median, at+".latency.p99", "must not be below the median")
	c.check(f.Do != "error" || f.Status > 0 || f.Code != "", at+".status", "status or code is required if do is \"error\"")
	providers := []string{"", "apns", "fcm", "oauth", "twilio", "sendgrid", "callback"}
	c.check(slices.Contains(providers, f.Provider), at+".provider", "%q is not one of %s", f.Provider, strings.Join(providers[1:], ", "))
}

// overlaps reports whether f and o both kill, pause or stop the notifyd process, and would be
// active at the same time.
func (f *FaultSpec) overlaps(o *FaultSpec) bool {
	ends := func(f *FaultSpec) Duration {
		if f.For == 0 {
			return math.MaxInt64
		}
		return f.At + f.For
	}
	return f.Process != "" && o.Process != "" && f.At < ends(o) && o.At < ends(f)
}

func (s *ServerSpec) validate(c *scenarioChecker) {
	c.check(slices.Contains([]string{"", "context", "pipeline", "process"}, s.Mode), "server.mode", "must be \"context\", \"pipeline\" or \"process\", not %q", s.Mode)
	c.check(slices.Contains([]string{"", "simulators", "stub"}, s.Providers), "server.providers", "must be \"simulators\" or \"stub\", not %q", s.Providers)
	c.check(s.Providers != "stub" || s.Mode == "pipeline", "server.providers", "\"stub\" needs server.mode pipeline")
	for key := range s.Set {
		c.check(settable(key), "server.set", "%s cannot be set by a scenario; a scenario may set %s", key, strings.Join(settings, ", "))
	}
	c.check(s.Profiles <= maxUsers && (s.Profiles == 0 || s.Mode == "pipeline"), "server.profiles", "must be at most 100M, and needs server.mode pipeline")
}

// settings lists the keys that a scenario may set for the notifyd that it starts. An entry that
// ends with a dot allows all keys that begin with the entry. With these keys a scenario cannot name
// another machine, a file or an address to listen on.
var settings = []string{"audit.", "history.", "intake.", "log.", "logging.level", "timers.", "triggers.timeout", "triggers.in_flight", "triggers.caller_in_flight", "triggers.max_pending", "workers."}

func settable(key string) bool {
	return key != "log.listen" && slices.ContainsFunc(settings, func(s string) bool { return key == s || strings.HasSuffix(s, ".") && strings.HasPrefix(key, s) })
}

// Length returns how long all phases take together. It returns 0 if a phase ends by counts.
func (s *Scenario) Length() time.Duration {
	sum := time.Duration(0)
	for i := range s.Phases {
		if s.Phases[i].Duration == 0 {
			return 0
		}
		sum += s.Phases[i].Duration.of()
	}
	return sum
}
