package load

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"
)

// Overrides holds values that replace values of every step. A zero value replaces nothing.
type Overrides struct {
	Rate, Count Number
	Duration    time.Duration // length of every phase except warm-ups
	Workers     int
}

// With returns a copy of the scenario in which the values of o replace the values of every step.
func (s Scenario) With(o Overrides) Scenario {
	s = s.WithDefaults() // WithDefaults copies the phases
	if o.Duration > 0 && s.Objective != nil {
		trial := *s.Objective
		trial.Hold, trial.Confirm = Duration(o.Duration), 0
		s.Objective = &trial
	}
	for i := range s.Phases {
		p := &s.Phases[i]
		if o.Duration > 0 && !p.Warmup {
			p.Duration = Duration(o.Duration)
		}
		for j := range p.Steps {
			st := &p.Steps[j]
			if o.Rate > 0 {
				st.Rate, st.Arrival = o.Rate, Arrival{Shape: "constant", Rate: o.Rate, Poisson: st.Arrival.Poisson}
			}
			if o.Count > 0 {
				st.Count = o.Count
			}
			if o.Workers > 0 {
				st.Workers = o.Workers
			}
			st.Size = fittingSize(st)
		}
	}
	return s
}

// fittingSize returns the size of the requests of a step. For a fan-out it is at most the number of
// messages and at most the number of users.
func fittingSize(st *Step) int {
	size := st.Size
	if st.bodies() == Fanout {
		if st.Count > 0 {
			size = min(size, int(st.Count))
		}
		size = min(size, int(st.Users.Count))
	}
	return max(size, 1)
}

// Scaled returns a copy of the scenario with all rates and counts multiplied by f.
func (s Scenario) Scaled(f float64) Scenario { return s.scaled(f, 1, f) }

// Shortened returns a short form of the scenario, which takes a few seconds and shows only that
// the scenario works. If the field Short has conditions, they replace the thresholds of the
// scenario. Otherwise only the thresholds on the metrics lost, duplicates, early, unexpected,
// unverified and ended stay. A short run says nothing about the others, for example about
// latencies.
func (s Scenario) Shortened() Scenario {
	var sh Short
	if s.Short != nil {
		sh = *s.Short
	}
	sh.Rate = cmp.Or(sh.Rate, 0.1)
	sh.Time = cmp.Or(sh.Time, 0.1)
	sh.Count = cmp.Or(sh.Count, sh.Rate*sh.Time)
	out := s.scaled(sh.Rate, sh.Time, sh.Count)
	if sh.Drain > 0 {
		out.Drain = sh.Drain
	} else {
		out.Drain = min(out.Drain, Duration(time.Minute))
	}
	if o := s.Objective; o != nil {
		short := s.objective()
		for _, n := range []*Number{&short.From, &short.Most} {
			*n = Number(float64(*n) * sh.Rate)
		}
		for _, d := range []*Duration{&short.Hold, &short.Confirm} { // backlogSlope needs at least three seconds
			*d = max(Duration(float64(*d)*sh.Time), Duration(3*time.Second))
		}
		out.Objective = &short
	}
	out.Thresholds = nil
	if len(sh.Holds) > 0 {
		for _, expr := range sh.Holds {
			out.Thresholds = append(out.Thresholds, Threshold{Expr: expr})
		}
		return out
	}
	for _, t := range s.Thresholds {
		c, err := ParseThreshold(t.Expr)
		if err != nil {
			continue
		}
		switch c.left.name {
		case "lost", "duplicates", "early", "unexpected", "unverified", "ended":
			out.Thresholds = append(out.Thresholds, t)
		}
	}
	return out
}

func (s Scenario) scaled(rate, length, count float64) Scenario {
	s = s.WithDefaults()
	r := func(n *Number) { *n = Number(float64(*n) * rate) }
	d := func(v *Duration) {
		if *v > 0 {
			*v = Duration(max(float64(*v)*length, float64(10*time.Millisecond)))
		}
	}
	n := func(v *Number) {
		if *v > 0 {
			*v = Number(math.Max(math.Round(float64(*v)*count), 1))
		}
	}
	n(&s.Server.Profiles)
	for i := range s.Phases {
		p := &s.Phases[i]
		if d(&p.Duration); length < 1 && p.Duration > 0 {
			p.Duration = max(p.Duration, Duration(time.Second))
		}
		for j := range p.Steps {
			st := &p.Steps[j]
			a := &st.Arrival
			for _, v := range []*Number{&st.Rate, &a.Rate, &a.From, &a.To, &a.Peak} {
				r(v)
			}
			if a.Shape == "trace" {
				a.Factor *= rate
			}
			for _, v := range []*Duration{&st.Start, &a.Over, &a.At, &a.For, &a.Period} {
				d(v)
			}
			levels := make([]Level, len(a.Levels))
			for k, l := range a.Levels {
				r(&l.Rate)
				d(&l.For)
				levels[k] = l
			}
			a.Levels = levels
			n(&st.Count)
			if st.Users.Pick == "each" && !st.Ordered && st.bodies() == Fanout && s.Server.Profiles > 0 {
				st.Users.Count = min(st.Users.Count, s.Server.Profiles)
			}
			if l := st.Scheduled; l != nil {
				later := *l
				d(&later.After)
				d(&later.At)
				d(&later.Spread)
				st.Scheduled = &later
			}
			st.Size = fittingSize(st)
		}
		faults := make([]FaultSpec, len(p.Faults))
		for k, f := range p.Faults {
			d(&f.At)
			d(&f.For)
			faults[k] = f
		}
		p.Faults = faults
	}
	return s
}

// CompileOnlyConfig returns a configuration with which a scenario can be compiled without running
// it. Its targets accept everything and its controls do nothing.
func CompileOnlyConfig() Config {
	return Config{Target: dryTarget{}, Faults: dryTarget{}, Process: dryTarget{}, Actions: map[string]func(context.Context) error{"replay": func(context.Context) error { return nil }}, Callback: "http://127.0.0.1/dry"}
}

type dryTarget struct{}

func (dryTarget) Send(_ context.Context, r *Request) (Ack, error) { return Ack{Accepted: r.Size}, nil }

func (dryTarget) Begin(context.Context, *FaultSpec) (func(context.Context) error, error) {
	return func(context.Context) error { return nil }, nil
}

func (dryTarget) Fault(context.Context, *FaultSpec) (func(context.Context) error, error) {
	return func(context.Context) error { return nil }, nil
}

// steps returns the steps of all phases.
func (s *Scenario) steps() (list []*Step) {
	for i := range s.Phases {
		for j := range s.Phases[i].Steps {
			list = append(list, &s.Phases[i].Steps[j])
		}
	}
	return list
}

// OnlyNull reports whether all steps have the target null. Then a run sends nothing to a server.
func (s *Scenario) OnlyNull() bool {
	return !slices.ContainsFunc(s.steps(), func(st *Step) bool { return st.Target != Null })
}

// Uses reports whether at least one step has this target.
func (s *Scenario) Uses(target string) bool {
	return slices.ContainsFunc(s.steps(), func(st *Step) bool { return st.Target == target })
}

// Workers returns the highest number of requests that may wait for an answer at the same time.
func (s *Scenario) Workers() int {
	most := 0
	for i := range s.Phases {
		sum := 0
		for j := range s.Phases[i].Steps {
			sum += s.Phases[i].Steps[j].Workers
		}
		most = max(most, sum)
	}
	return most
}

// ProviderLatency returns the latency of the simulators that the run starts. The default is 5 ms.
func (s *ServerSpec) ProviderLatency() time.Duration {
	if s.Latency == 0 {
		return 5 * time.Millisecond
	}
	return s.Latency.of()
}
