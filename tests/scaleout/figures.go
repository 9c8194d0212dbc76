package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// processes is the key of the processes whose number a step changes. It is used in maps of processor
// time and of cores.
const processes = "processes"

// Limits of a step.
const (
	// needed is the lowest allowed rate of n processes, as a share of n times the rate of one process.
	needed = 0.8
	// fullCores is a share of the machine's cores. If at least this share is in use, the machine
	// counts as full.
	fullCores = 0.95
	// fullServer is a number of cores. If Redis uses at least this number, Redis counts as full,
	// because only one thread of Redis runs commands.
	fullServer = 0.95
)

// figures holds the measurements of one step.
type figures struct {
	load      string
	processes int
	count     int64   // accepted messages
	share     float64 // share of a core that each process has
	machine   float64 // cores of the machine
	samples   []sample
	from      time.Time          // when the processes could begin to work on the messages
	asked     map[string]float64 // increase of the processes' metrics under load
	calm      []sample           // two samples without load
	rest      map[string]float64 // increase of the processes' metrics between the two samples in calm

	ended, lost, twice int64
	rss                []int // MiB
}

// reached returns the time at which n messages were done. It interpolates between samples. If fewer
// messages were done, it returns the time of the last sample.
func (f *figures) reached(n float64) time.Time {
	for i := 1; i < len(f.samples); i++ {
		a, b := f.samples[i-1], f.samples[i]
		if float64(b.done) >= n {
			part := (n - float64(a.done)) / float64(max(b.done-a.done, 1))
			return a.at.Add(time.Duration(max(part, 0) * float64(b.at.Sub(a.at))))
		}
	}
	return f.samples[len(f.samples)-1].at
}

// perSecond returns the number of messages done per second. It leaves out the first and the last
// tenth of the messages: at the beginning notifyd still accepts messages, and at the end some
// processes have no messages left.
func (f *figures) perSecond() float64 {
	n := float64(f.count)
	return 0.8 * n / max(f.reached(0.9*n).Sub(f.reached(0.1*n)).Seconds(), 0.001)
}

// between returns the average number of cores in use between two samples. The keys are the names of
// the groups of processes, e.g. "kafka".
func between(a, b sample) map[string]float64 {
	out := map[string]float64{}
	for name, used := range b.cpu {
		out[name] = max((used-a.cpu[name]).Seconds()/max(b.at.Sub(a.at).Seconds(), 0.001), 0)
	}
	return out
}

// cores returns the average number of cores in use, without the first and the last tenth of the
// messages.
func (f *figures) cores() map[string]float64 {
	n := float64(f.count)
	first, last := f.reached(0.1*n), f.reached(0.9*n)
	i := slices.IndexFunc(f.samples, func(s sample) bool { return !s.at.Before(first) })
	j := slices.IndexFunc(f.samples, func(s sample) bool { return !s.at.Before(last) })
	return between(f.samples[min(i, j-1)], f.samples[j])
}

// full returns the name of the bottleneck. It is "redis" if Redis is full. If the machine has no free
// cores, it is the name of the group that uses most cores, other than the processes of the step.
// Otherwise full returns "none": only the processes' shares of a core limit the rate.
func (f *figures) full() string {
	cores, sum := f.cores(), 0.0
	if cores["redis"] >= fullServer {
		return "redis"
	}
	most := others
	for name, used := range cores {
		sum += used
		if name != processes && used > cores[most] {
			most = name
		}
	}
	if sum >= fullCores*f.machine {
		return most
	}
	return "none"
}

// requests returns how many requests of the given kinds the processes sent to a server. The
// parameter m holds metrics of the processes.
func requests(m map[string]float64, server string, kinds ...string) (n float64) {
	for _, k := range kinds {
		n += m[fmt.Sprintf(`notifyd_server_requests_total{kind=%q,server=%q}`, k, server)]
	}
	return n
}

var statements = []string{"swap", "serial_read", "read", "write", "logged_batch", "scattered_batch"}

// measure is a row of the table: its key and its description, and the format and the function of its
// value.
type measure struct {
	key, about, format string
	of                 func(*figures) float64
}

// measures lists the figures of a step. A step prints them as key=value pairs. The table shows them
// for all steps.
var measures = []measure{
	{"per_second", "messages ended a second", "%.0f", (*figures).perSecond},
	{"end_p99_s", "s until 99% of the messages had ended", "%.1f", func(f *figures) float64 {
		return f.reached(0.99 * float64(f.count)).Sub(f.from).Seconds()
	}},
	{"cores", "cores of the processes", "%.2f", coresOf(processes)},
	{"each_us", "us of processor time of the processes for each message", "%.0f", eachOf(processes)},
	{"kafka_cores", "cores of Kafka", "%.2f", coresOf("kafka")},
	{"cassandra_cores", "cores of Cassandra", "%.2f", coresOf("cassandra")},
	{"redis_cores", "cores of Redis", "%.2f", coresOf("redis")},
	{"postgres_cores", "cores of PostgreSQL", "%.2f", coresOf("postgres")},
	{"providers_cores", "cores of the simulated providers", "%.2f", coresOf("providers")},
	{"rest_of_it_cores", "cores of the API and other roles", "%.2f", func(f *figures) float64 { return f.cores()["api"] + f.cores()["rest"] }},
	{"others_cores", "cores of other programs", "%.2f", coresOf(others)},
	{"statements_each", "statements to Cassandra for each message", "%.3g", askedOf("cassandra", statements...)},
	{"reads_each", "reads from Cassandra for each message", "%.3g", askedOf("cassandra", "read")},
	{"rows_each", "rows written to Cassandra for each message", "%.3g", askedOf("cassandra", "row")},
	{"filter_silent_each", "keys that could not be looked up in or added to the filter in Redis, for each message", "%.3g", func(f *figures) float64 {
		return (f.asked[`notifyd_seen_filter_keys_total{result="blind"}`] + f.asked[`notifyd_seen_filter_keys_total{result="missed"}`]) / max(float64(f.count), 1)
	}},
	{"trips_each", "round trips to Redis for each message", "%.3g", askedOf("redis", "round_trip")},
	{"rest_statements_s", "statements to Cassandra a second at rest, of all processes", "%.1f", restOf("cassandra", statements...)},
	{"rest_trips_s", "round trips to Redis a second at rest, of all processes", "%.1f", restOf("redis", "round_trip")},
	{"rest_cores", "cores at rest, of all processes", "%.3f", func(f *figures) float64 { return between(f.calm[0], f.calm[1])[processes] }},
	{"rest_kafka_cores", "cores of Kafka at rest", "%.3f", func(f *figures) float64 { return between(f.calm[0], f.calm[1])["kafka"] }},
	{"rss_mib", "MiB resident, of the largest process", "%.0f", func(f *figures) float64 { return float64(slices.Max(f.rss)) }},
}

func coresOf(name string) func(*figures) float64 {
	return func(f *figures) float64 { return f.cores()[name] }
}

func eachOf(name string) func(*figures) float64 {
	return func(f *figures) float64 { return f.cores()[name] / f.perSecond() * 1e6 }
}

func askedOf(server string, kinds ...string) func(*figures) float64 {
	return func(f *figures) float64 { return requests(f.asked, server, kinds...) / max(float64(f.count), 1) }
}

func restOf(server string, kinds ...string) func(*figures) float64 {
	return func(f *figures) float64 {
		return requests(f.rest, server, kinds...) / f.calm[1].at.Sub(f.calm[0].at).Seconds()
	}
}

// line returns the figures of one step as a line of key=value pairs. The parameter times is the
// step's rate as a multiple of the rate of one process.
func (f *figures) line(times float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "load=%s processes=%d share=%.2f count=%d times=%.2f", f.load, f.processes, f.share, f.count, times)
	for _, m := range measures {
		fmt.Fprintf(&b, " %s="+m.format, m.key, m.of(f))
	}
	fmt.Fprintf(&b, " lost=%d twice=%d full=%s", f.lost, f.twice, f.full())
	return b.String()
}

// These are limits of an exponent e. If n times as many processes make a figure n^e times as large,
// the figure "grows" if e is growsFrom or more. It "stays" if e is between -staysTo and staysTo. See
// trend.
const (
	growsFrom = 0.75
	staysTo   = 0.25
)

// table returns a Markdown table of the steps of one load. It has a row for each measure and a column
// for each step.
func table(steps []figures) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |", steps[0].load)
	for i := range steps {
		fmt.Fprintf(&b, " %d |", steps[i].processes)
	}
	b.WriteString(" with the number of processes |\n|---|" + strings.Repeat("---|", len(steps)+1) + "\n")
	first, last := &steps[0], &steps[len(steps)-1]
	for _, m := range measures {
		fmt.Fprintf(&b, "| %s |", m.about)
		for i := range steps {
			fmt.Fprintf(&b, " "+m.format+" |", m.of(&steps[i]))
		}
		fmt.Fprintf(&b, " %s |\n", trend(m.of(first), m.of(last), float64(last.processes)/float64(first.processes)))
	}
	return b.String()
}

// trend describes how a figure changes from before to after if the number of processes is
// multiplied by factor. It returns "" if it cannot compare the two values.
func trend(before, after, factor float64) string {
	if before <= 0 || after <= 0 || factor <= 1 {
		return ""
	}
	switch e := math.Log(after/before) / math.Log(factor); {
	case e >= growsFrom:
		return "grows"
	case e >= staysTo:
		return "grows less"
	case e > -staysTo:
		return "stays"
	case e > -growsFrom:
		return "falls less"
	}
	return "falls"
}

// verdict collects the steps of a run and decides whether the run has passed.
type verdict struct {
	judge  bool // true: the run also fails if a step is slow
	broken bool // true: a message was lost or sent twice, or a step had no message

	steps map[string][]figures // name of a load -> its steps
	loads []string             // names of the loads, in the order of their first steps
	times map[string][]string  // name of a load -> the ratio of each step, as text
	slow  []string             // steps below the needed rate for which full returns "none" or others
}

// add adds a step. It returns the step's rate as a multiple of the rate of one process. The first
// step of each load must have one process.
func (v *verdict) add(f figures) (times float64) {
	if v.steps == nil {
		v.steps, v.times = map[string][]figures{}, map[string][]string{}
	}
	if len(v.steps[f.load]) == 0 {
		v.loads = append(v.loads, f.load)
	}
	v.steps[f.load] = append(v.steps[f.load], f)
	times = f.perSecond() / v.steps[f.load][0].perSecond()
	text := fmt.Sprintf("%.2f", times)
	if times < needed*float64(f.processes) {
		full := f.full()
		text += "(" + full + ")"
		if full == "none" || full == others {
			v.slow = append(v.slow, fmt.Sprintf("%s:%d", f.load, f.processes))
		}
	}
	v.times[f.load] = append(v.times[f.load], text)
	v.broken = v.broken || f.lost > 0 || f.twice > 0 || f.count == 0
	return times
}

// line returns the ratios of each load and the slow steps as key=value pairs. The result ok is false
// if the run has failed.
func (v *verdict) line() (text string, ok bool) {
	for _, name := range v.loads {
		text += fmt.Sprintf("%s=%s ", name, strings.Join(v.times[name], ","))
	}
	slow := "none"
	if len(v.slow) > 0 {
		slow = strings.Join(v.slow, ",")
	}
	ok = !v.broken && len(v.loads) > 0 && (!v.judge || len(v.slow) == 0)
	return text + "slow=" + slow, ok
}
