package app

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
)

// cardWriter collects the facts that a process reports about itself to operators.
type cardWriter struct{ *Node }

// buildCard returns the card of this process. It sends no request to a server.
func (n cardWriter) buildCard(ctx context.Context) (c cluster.Card) {
	host, _ := os.Hostname()
	c.Process = api.Process{
		Name: n.cfg.instance(), Host: host, Roles: n.roles, Release: n.cfg.Version, API: n.Addr(), Admin: n.Admin(),
		StartedAt: n.started, State: n.processState(ctx),
	}
	c.Providers = api.ProvidersNone
	if n.hasTask(func(t cluster.Tasks) bool { return len(t.Lanes) > 0 }) {
		c.Providers = n.cfg.providerMode()
	}
	var err error
	if c.Rates, err = n.rates.Report(); err != nil {
		c.Note = "the rates of this process cannot be read: " + err.Error()
	}
	c.Rates.Settings = []api.ProcessSettings{n.settings()}
	c.Accounts = n.accounts()
	c.Circuits = slices.DeleteFunc(n.circuits.Local(), func(one api.Circuit) bool { return !n.makesCallsOf(one.Name) })
	n.groups.partitions(func(group string, p *log.PartitionStats) {
		k := slices.IndexFunc(c.Groups, func(w cluster.GroupWork) bool { return w.Group == group && w.Topic == p.TP.Topic })
		if k < 0 {
			k = len(c.Groups)
			c.Groups = append(c.Groups, cluster.GroupWork{Group: group, Topic: p.TP.Topic})
		}
		w := &c.Groups[k]
		w.Partitions, w.InFlight = w.Partitions+1, w.InFlight+p.InFlight
		if p.Paused {
			w.Paused++
		}
	})
	d := &doctor{n: n.Node}
	d.lookAtSelf()
	c.Findings = d.Findings
	return c
}

// settings returns the figures of this process's configuration. For partitions, shards and accounts
// it returns the numbers that are in use, which may differ from the configured numbers.
func (n cardWriter) settings() api.ProcessSettings {
	s := n.cfg.Settings()
	s.Roles = n.roles
	s.Channels = slices.DeleteFunc(s.Channels, func(c api.ChannelSettings) bool {
		ch, _ := notify.ParseChannel(c.Channel)
		return !n.hasTask(func(t cluster.Tasks) bool { return t.Calls(ch) })
	})
	if spread, err := n.shards.Now(); err == nil {
		s.TimerShards = spread.Most()
	}
	for i := range s.Channels {
		c := &s.Channels[i]
		ch, _ := notify.ParseChannel(c.Channel)
		if n.st.partitions != nil {
			if there, err := n.st.partitions(notify.Lane{Channel: ch}.Topic()); err == nil {
				c.Partitions = there
			}
		}
		switch {
		case ch == notify.SMS && n.provs.twilio != nil:
			c.Accounts = len(n.provs.twilio.Accounts())
		case ch == notify.Email && n.provs.sendgrid != nil:
			c.Accounts = len(n.provs.sendgrid.Accounts())
		}
	}
	return s
}

// accounts returns the provider accounts that this process calls.
func (n cardWriter) accounts() (out []api.Account) {
	add := func(name string, ch notify.Channel, list []provider.AccountStatus) {
		if !n.hasTask(func(t cluster.Tasks) bool { return t.Calls(ch) }) {
			return
		}
		for _, a := range list {
			one := api.Account{Provider: name, Account: a.Name, State: a.Breaker.State.String(), Room: a.Tokens, InFlight: a.InFlight, Limit: a.Limit}
			if a.Breaker.State != limit.Closed {
				one.Reason = a.Breaker.Reason.String()
				if !a.Breaker.Until.IsZero() {
					one.ProbeAt = &a.Breaker.Until
				}
			}
			if !a.Blocked.IsZero() {
				one.State, one.BlockedUntil = "blocked", &a.Blocked
			}
			out = append(out, one)
		}
	}
	if p := n.provs.twilio; p != nil {
		add("twilio", notify.SMS, p.Accounts())
	}
	if p := n.provs.sendgrid; p != nil {
		add("sendgrid", notify.Email, p.Accounts())
	}
	return out
}

// allAccounts answers GET /v1/ops/accounts.
func (n cardWriter) allAccounts(ctx context.Context) (any, error) {
	cards := n.cards.All(ctx)
	out := api.Accounts{Items: []api.Account{}, Missing: cluster.Missing(cards)}
	for i := range cards {
		out.Items = append(out.Items, cards[i].Accounts...)
	}
	slices.SortStableFunc(out.Items, func(a, b api.Account) int {
		return cmp.Or(strings.Compare(a.Provider, b.Provider), strings.Compare(a.Account, b.Account), strings.Compare(a.Process, b.Process))
	})
	return out, nil
}

// worstProviders returns which kind of providers the processes of the cluster call. If they call
// several kinds, it returns the most harmful kind: the last of them in api.ProviderModes. If a
// process does not answer, its last card counts. If the kind of a process is not known, the process
// counts as one that calls real providers. This happens with workers of an older release, and until
// the cards of the other processes were read.
func (n cardWriter) worstProviders(ctx context.Context) string {
	cards, worst := n.cards.All(ctx), 0
	for i := range cards {
		if unread := cards[i].State == api.ProcessUnknown; unread && len(cards) > 2 {
			continue // the list still has the cards of the last successful read
		}
		mode := slices.Index(api.ProviderModes, cards[i].Providers)
		if mode < 0 && cards[i].Providers != api.ProvidersNone {
			mode = len(api.ProviderModes) - 1
		}
		worst = max(worst, mode)
	}
	return api.ProviderModes[worst]
}

// makesCallsOf reports whether this process makes the calls that a circuit breaker guards. If it makes
// no such calls, its breaker has no information.
func (n cardWriter) makesCallsOf(circuit string) bool {
	if cluster.IsProviderCircuit(circuit) {
		return n.hasTask(func(t cluster.Tasks) bool { return len(t.Lanes) > 0 })
	}
	return n.hasTask(func(t cluster.Tasks) bool { return t.Dispatcher })
}

// processState returns the state of this process: "draining", "ready", or the code of the error
// that makes it not ready.
func (n cardWriter) processState(ctx context.Context) string {
	if n.draining.Load() {
		return api.ProcessDraining
	}
	err := n.Ready(ctx)
	if err == nil {
		return api.ProcessReady
	}
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e.Code
	}
	return err.Error()
}

// allRates answers GET /v1/ops/rates.
func (n cardWriter) allRates(ctx context.Context) (any, error) {
	cards := n.cards.All(ctx)
	if n.cards.Beats == nil {
		return cards[0].Rates, nil
	}
	return cluster.SumRates(cards), nil
}

// addMembers adds to each lag the processes that work on its group, with the number of records in
// flight of each.
func addMembers(lags []api.GroupLag, cards []cluster.Card) {
	for i := range lags {
		l := &lags[i]
		l.InFlight, l.Paused = 0, 0
		for k := range cards {
			for _, w := range cards[k].Groups {
				if w.Group == l.Group && w.Topic == l.Topic {
					w.Process = cards[k].Name
					l.Members = append(l.Members, w.GroupMember)
					l.InFlight, l.Paused = l.InFlight+w.InFlight, l.Paused+w.Paused
				}
			}
		}
	}
}

// allCircuits contains the circuits of all processes. If an operator changes a circuit, the change
// applies to every process.
type allCircuits struct {
	*cluster.Circuits
	cards *cluster.Cards
}

// List implements server.Circuits.
func (c allCircuits) List(ctx context.Context) api.Circuits {
	cards := c.cards.All(ctx)
	out := api.Circuits{Missing: cluster.Missing(cards)}
	for i := range cards {
		out.Items = append(out.Items, cards[i].Circuits...)
	}
	slices.SortFunc(out.Items, func(a, b api.Circuit) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Process, b.Process))
	})
	return out
}

// lookAtProcesses adds the findings of all processes about themselves, and the state of each process.
func (d *doctor) lookAtProcesses(cards []cluster.Card) {
	for i := range cards {
		d.Findings = append(d.Findings, cards[i].Findings...)
	}
	if d.n.cards.Beats == nil {
		return
	}
	for i := range cards {
		p := &cards[i].Process
		switch {
		case p.Missing():
			level, then := "warn", "other processes with its roles do its work meanwhile"
			if lacksRole(cards, p.Roles) {
				level, then = "fail", "no other process has its roles, and its work waits"
			}
			d.Add("process", true, level, "look at the process and its machine, and start it again; "+then, "%s", p.Absence())
		default:
			d.Add("process", p.State != api.ProcessReady && p.State != api.ProcessDraining, "warn",
				"notifyctl explain CODE says what keeps the process from its work",
				"%s: %s on %s, notifyd %s, API %s, up %s%s", p.State, strings.Join(p.Roles, ", "), p.Host, cmp.Or(p.Release, "of no release"), p.API,
				time.Since(p.StartedAt).Round(time.Second), colonReason(p.Note))
		}
		d.Findings[len(d.Findings)-1].Process = p.Name
	}
}

// lacksRole reports whether at least one of the given roles is missing: no process that answers has
// it.
func lacksRole(cards []cluster.Card, roles []string) bool {
	want, err := cluster.ParseRoles(roles)
	var have []string
	for i := range cards {
		if !cards[i].Missing() {
			have = append(have, cards[i].Roles...)
		}
	}
	got, _ := cluster.ParseRoles(have)
	if err != nil { // another release has roles that this release does not know
		return false
	}
	return want.API && !got.API || want.Scheduler && !got.Scheduler || want.Dispatcher && !got.Dispatcher || want.Operator && !got.Operator ||
		slices.ContainsFunc(want.Lanes, func(l notify.Lane) bool { return !slices.Contains(got.Lanes, l) })
}
