package capacity

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/term"
)

// Limit is a line of the capacity sheet whose Count is too low if the load continues for a long
// time.
type Limit struct {
	Key       string `json:"key"` // key of the line
	Count     int64  `json:"count"`
	Sustained int64  `json:"sustained"`
	Why       string `json:"why"`
}

func (in *Input) limits(lines []Line) []Limit {
	why := map[string]func(*Line) string{
		"brokers":  func(l *Line) string { return "replicas were not counted: " + l.SustainedHow },
		"mail_ips": in.whyMail,
		"scheduler_nodes": func(l *Line) string {
			return "replicas were not counted: " + l.SustainedHow + "; each finished row is deleted, which doubles the writes"
		},
		"timer_shards": func(l *Line) string {
			each := in.PartitionRows / 60
			return fmt.Sprintf("one set of replicas takes all writes of a partition's minute, however many nodes there are: %s; raise timers.shards (notifyd migrate up, without a stop) before each shard has %s scheduled rows per second: 64 shards hold to %s/s, 256 to %s/s",
				l.SustainedHow, Number(each), Number(64*each), Number(256*each))
		},
		"release_owners": func(l *Line) string { return "one leader reads and publishes all rows: " + l.SustainedHow },
	}
	out := []Limit{}
	for i := range lines {
		l := &lines[i]
		if say := why[l.Key]; say != nil && l.Sustained > l.Count {
			out = append(out, Limit{l.Key, l.Count, l.Sustained, say(l)})
		}
	}
	return out
}

// whyMail explains why the counted IPs are too few for mails that come in every second. The IPs
// were counted for the mails of a single second, sent within the mail objective.
func (in *Input) whyMail(l *Line) string {
	can := float64(l.Count) * in.MailIPRate
	goal := in.MailObjective.Seconds()
	wait := time.Duration((in.mailCalls()/can - 1) * goal * float64(time.Second)).Round(time.Minute)
	return fmt.Sprintf("%s mails spread over %s are one burst per %s: %s IPs send %s/s. If %s come every second, the backlog grows by %s/s; after %s, %s mails wait, the last of them for %s",
		Number(in.mailCalls()), brief(in.MailObjective), brief(in.MailObjective), term.Count(l.Count), Number(can),
		Number(in.mailCalls()), Number(in.mailCalls()-can), brief(in.MailObjective), Number((in.mailCalls()-can)*goal), brief(wait))
}

// Saving says how many nodes the status store needs with a given share of fan-outs (Fanout), and
// how many nodes the fan-outs save. A fan-out needs fewer nodes, because its rows are written per
// chunk.
type Saving struct {
	Fanout float64 `json:"fanout"`
	Rows   float64 `json:"rows"` // rows a second
	Nodes  int64   `json:"nodes"`
	Saved  int64   `json:"saved"` // compared with a share of fan-outs of 0
}

func (in *Input) savings() []Saving {
	shares := []float64{0, 0.5, 0.9, 0.99, 1}
	if !slices.Contains(shares, in.Fanout) {
		shares = append(shares, in.Fanout)
		slices.Sort(shares)
	}
	nodes := func(share float64) int64 {
		return times(ceil(in.rows(share)/in.DBNodeRate), in.DBReplication)
	}
	var out []Saving
	for _, f := range shares {
		out = append(out, Saving{f, in.rows(f), nodes(f), nodes(0) - nodes(f)})
	}
	return out
}

// Break is a part of the system, with the load at which it breaks.
type Break struct {
	Key     string  `json:"key"`
	Name    string  `json:"name"`
	Count   int64   `json:"count"`
	HoldsTo float64 `json:"holds_to"` // notifications per second that it can process permanently
	OneLost float64 `json:"one_lost"`
	Share   float64 `json:"share"` // HoldsTo divided by the requested load
}

// breaks sorts the parts by the load at which they break, lowest first.
func breaks(rate float64, lines []Line) []Break {
	out := []Break{}
	for _, l := range lines {
		if l.HoldsTo > 0 {
			out = append(out, Break{l.Key, l.Name, l.Count, l.HoldsTo, l.OneLost, l.HoldsTo / rate})
		}
	}
	slices.SortStableFunc(out, func(a, b Break) int {
		switch {
		case math.Abs(a.HoldsTo-b.HoldsTo) <= 1e-9*rate:
			return 0
		case a.HoldsTo < b.HoldsTo:
			return -1
		}
		return 1
	})
	return out
}

// firstBreakText returns one line that says which part breaks first.
func firstBreakText(rate float64, bs []Break) string {
	if len(bs) == 0 {
		return "nothing breaks, because there is no load"
	}
	b := bs[0]
	s := fmt.Sprintf("breaks first: %s (%s), at %s/s of lasting load, %s%% of %s/s", b.Name, term.Count(b.Count), Number(b.HoldsTo), short(100*b.Share), Number(rate))
	if len(bs) > 1 {
		s += fmt.Sprintf("; then %s at %s/s", bs[1].Name, Number(bs[1].HoldsTo))
	}
	return s
}

// Change is the change of a line when one parameter gets 10% worse.
type Change struct {
	Key  string `json:"key"` // key of the parameter
	From string `json:"from"`
	To   string `json:"to"`
	Line string `json:"line"`
	Was  int64  `json:"was"` // Count before
	Is   int64  `json:"is"`
}

// sensitiveParams lists parameters whose values tend to change over time. A value that is
// multiplied by its factor is 10% worse.
var sensitiveParams = []struct {
	key    string
	factor float64
}{
	{"rate", 1.1}, {"push_latency", 1.1}, {"push_worker_rate", 0.9}, {"sms_account_rate", 0.9},
	{"mail_objective", 0.9}, {"mail_ip_rate", 0.9}, {"db_node_rate", 0.9}, {"broker_rate", 0.9}, {"scheduler_node_rate", 0.9},
}

// sensitivity makes one parameter at a time 10% worse, and returns the lines whose counts change by
// this. It omits lines that are computed from other lines.
func (in *Input) sensitivity(lines []Line) []Change {
	out := []Change{}
	for _, w := range sensitiveParams {
		other := *in
		var from, to string
		for _, p := range other.Params() {
			if p.Key == w.key {
				from = p.String()
				p.scale(w.factor)
				to = p.String()
			}
		}
		if other.Check() != nil { // the worse value is out of range
			continue
		}
		for _, l := range other.lines() {
			was := lineOf(lines, l.Key)
			if isDerived(l.Key) || was.Count == l.Count {
				continue
			}
			out = append(out, Change{w.key, from, to, l.Key, was.Count, l.Count})
		}
	}
	return out
}

// isDerived reports whether a line is computed from another line.
func isDerived(key string) bool {
	switch key {
	case "push_connections", "db_shards", "mail_workers", "mail_calls", "scheduled_rows":
		return true
	}
	return strings.HasPrefix(key, "partitions_")
}
