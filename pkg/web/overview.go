package web

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// callerFailures counts the failures of one caller.
type callerFailures struct {
	Caller   string
	Day      int
	Hour     int
	TopCode  string // the most frequent code
	TopClass string
	TopCount int
}

type overviewBody struct {
	Rates    part[api.Rates]
	Lag      part[[]api.GroupLag]
	Findings part[[]api.Finding]
	Circuits part[[]api.Circuit]
	Accounts part[[]api.Account]
	Failed   part[failuresBody]
	Jobs     part[[]api.Job]
	Forecast part[chart]
}

// Bad returns the findings that are not ok, the worst first.
func (b *overviewBody) Bad() (out []api.Finding) {
	for _, level := range []string{"fail", "warn"} {
		for _, f := range b.Findings.V {
			if f.Level == level {
				out = append(out, f)
			}
		}
	}
	return out
}

// Level returns the level of the worst finding.
func (b *overviewBody) Level() string {
	if bad := b.Bad(); len(bad) > 0 {
		return bad[0].Level
	}
	return "ok"
}

// Behind returns the total lag of all groups.
func (b *overviewBody) Behind() (n int64) {
	for _, l := range b.Lag.V {
		n += l.Lag
	}
	return n
}

// Waiting returns the total number of deferred receivers of all groups.
func (b *overviewBody) Waiting() (n int64) {
	for _, l := range b.Lag.V {
		n += l.Waiting()
	}
	return n
}

// Sum returns the sum of the rates of all channels and triggers.
func (b *overviewBody) Sum() api.Rate { return api.SumOf(b.Rates.V.Rates) }

// Late returns the lateness of timers or of triggers, whichever has the higher 99% quantile.
func (b *overviewBody) Late() (worst api.Lateness) {
	for _, l := range b.Rates.V.Late {
		if l.N > 0 && l.P99 >= worst.P99 {
			worst = l
		}
	}
	return worst
}

// Busy returns the groups that have lag, work in flight, deferred receivers or a paused partition.
func (b *overviewBody) Busy() []api.GroupLag {
	return slices.DeleteFunc(slices.Clone(b.Lag.V), func(l api.GroupLag) bool { return l.Lag == 0 && l.InFlight == 0 && l.Paused == 0 && l.Waiting() == 0 })
}

func (p *Page) overview(v *visit) error {
	var b overviewBody
	var q apiCalls
	addCall(&q, &b.Rates, func() (api.Rates, error) { return v.client.Rates(v.ctx) })
	addCall(&q, &b.Lag, func() ([]api.GroupLag, error) { return v.client.Lag(v.ctx) })
	addCall(&q, &b.Findings, func() ([]api.Finding, error) { return v.client.Doctor(v.ctx) })
	addCall(&q, &b.Circuits, func() ([]api.Circuit, error) {
		cs, err := v.client.Circuits(v.ctx)
		return slices.DeleteFunc(cs.Items, func(c api.Circuit) bool { return c.State == "closed" }), err
	})
	addCall(&q, &b.Accounts, func() ([]api.Account, error) {
		as, err := v.client.Accounts(v.ctx)
		return slices.DeleteFunc(as.Items, func(a api.Account) bool { return a.State == "closed" }), err
	})
	addCall(&q, &b.Failed, func() (failuresBody, error) { return p.failuresOf(v) })
	addCall(&q, &b.Jobs, func() ([]api.Job, error) { return v.client.Jobs(v.ctx, 5) })
	addCall(&q, &b.Forecast, func() (chart, error) { return p.forecastOf(v) })
	q.wait()
	return v.show("overview", "Overview", &b)
}

// failuresBody contains the failures of the last 24 hours.
type failuresBody struct {
	Callers []callerFailures
	Top     api.LetterTop
}

func (p *Page) failuresOf(v *visit) (out failuresBody, err error) {
	day, err := v.failedSince(&p.top, 24*time.Hour)
	if err != nil {
		return out, err
	}
	hour, err := v.failedSince(&p.hour, time.Hour)
	if err != nil {
		return out, err
	}
	out.Top = day
	by := map[string]*callerFailures{}
	for caller, n := range day.Callers {
		by[caller] = &callerFailures{Caller: caller, Day: n, Hour: hour.Callers[caller]}
	}
	for i := range day.Groups {
		g := &day.Groups[i]
		for caller, n := range g.Callers {
			if c := by[caller]; c != nil && n > c.TopCount {
				c.TopCode, c.TopClass, c.TopCount = g.Code, g.Class, n
			}
		}
	}
	for _, c := range by {
		out.Callers = append(out.Callers, *c)
	}
	slices.SortFunc(out.Callers, func(a, b callerFailures) int {
		return cmp.Or(cmp.Compare(b.Day, a.Day), strings.Compare(a.Caller, b.Caller))
	})
	return out, nil
}

func (p *Page) failures(v *visit) error {
	b, err := p.failuresOf(v)
	if err != nil {
		return err
	}
	return v.show("failures", "Failures of the last 24 hours", &b)
}

type circuitsBody struct {
	Circuits part[[]api.Circuit]
	Accounts part[[]api.Account]
}

// Settable returns the names of the circuits that an operator can set. A circuit of several
// processes is listed only once, because a change applies to all processes.
func (b *circuitsBody) Settable() (names []string) {
	for i := range b.Circuits.V {
		if name := b.Circuits.V[i].Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// setCircuit holds a circuit open or closed, or ends such a hold.
func (p *Page) setCircuit(v *visit) error {
	to := v.r.PostFormValue("change")
	if !slices.Contains([]string{"open", "closed", "reset"}, to) {
		return notify.Invalid("bad_value", "change", `must be "open", "closed" or "reset"`)
	}
	name := v.r.PostFormValue("circuit")
	if name == "" {
		return notify.Invalid("required", "circuit", "is missing; it must be a circuit such as caller:shop")
	}
	v.client.Reason = headerText(v.r.PostFormValue("reason"))
	if _, err := v.client.SetCircuit(v.ctx, name, to); err != nil {
		return err
	}
	return v.goTo(Prefix + "circuits")
}

func (p *Page) circuits(v *visit) error {
	var b circuitsBody
	var q apiCalls
	addCall(&q, &b.Circuits, func() ([]api.Circuit, error) {
		cs, err := v.client.Circuits(v.ctx)
		return cs.Items, err
	})
	addCall(&q, &b.Accounts, func() ([]api.Account, error) {
		as, err := v.client.Accounts(v.ctx)
		return as.Items, err
	})
	q.wait()
	rank := func(state string) int { return slices.Index([]string{"open", "blocked", "half-open"}, state) }
	worst := func(a, b string) int { return cmp.Compare(uint(rank(a)), uint(rank(b))) } // uint(-1) is the greatest, so other states are last
	slices.SortStableFunc(b.Circuits.V, func(x, y api.Circuit) int { return worst(x.State, y.State) })
	slices.SortStableFunc(b.Accounts.V, func(x, y api.Account) int { return worst(x.State, y.State) })
	return v.show("circuits", "Circuits and accounts", &b)
}
