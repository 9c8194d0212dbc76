package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// processes is a key in the maps of processor time and of cores. It stands for the processes whose
// number a step changes.
const processes = "processes"

// Limits of a step.
const (
	// needed is the lowest allowed rate of n processes, as a share of n times the rate of one
	// process. Example: 4 processes must reach 0.8 * 4 = 3.2 times the rate of one process.
	needed = 0.8
	// fullCores is a share of the machine's cores. If the processes use this share or more, the
	// machine counts as full.
	fullCores = 0.95
	// fullServer is a number of cores. If Redis uses this number or more, Redis counts as full,
	// because only one of its threads runs commands.
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
	rest      map[string]float64 // increase of the processes' metrics between the two samples in the field calm

	ended, lost, twice int64
	rss                []int // MiB
}

// timeOf returns the time at which n messages were done. It interpolates between samples. If fewer
// messages were done, it returns the time of the last sample.
func (f *figures) timeOf(n float64) time.Time {
	for i := 1; i < len(f.samples); i++ {
		a, b := f.samples[i-1], f.samples[i]
		if float64(b.done) >= n {
			part := (n - float64(a.done)) / float64(max(b.done-a.done, 1))
			return a.at.Add(time.Duration(max(part, 0) * float64(b.at.Sub(a.at))))
		}
	}
	return f.samples[len(f.samples)-1].at
}

// perSecond returns the number of messages done per second. The first and the last tenth of the
// messages do not count: at the beginning notifyd still accepts messages, and at the end some
// processes have no messages left.
func (f *figures) perSecond() float64 {
	n := float64(f.count)
	return 0.8 * n / max(f.timeOf(0.9*n).Sub(f.timeOf(0.1*n)).Seconds(), 0.001)
}

// coresBetween returns the average number of cores in use between two samples, by group of
// processes, for example "kafka".
func coresBetween(a, b sample) map[string]float64 {
	out := map[string]float64{}
	for name, used := range b.cpu {
		out[name] = max((used-a.cpu[name]).Seconds()/max(b.at.Sub(a.at).Seconds(), 0.001), 0)
	}
	return out
}

// cores returns the average number of cores in use, by group of processes. The time of the first
// and the last tenth of the messages does not count.
func (f *figures) cores() map[string]float64 {
	n := float64(f.count)
	first, last := f.timeOf(0.1*n), f.timeOf(0.9*n)
	i := slices.IndexFunc(f.samples, func(s sample) bool { return !s.at.Before(first) })
	j := slices.IndexFunc(f.samples, func(s sample) bool { return !s.at.Before(last) })
	return coresBetween(f.samples[min(i, j-1)], f.samples[j])
}

// bottleneck returns what limits the rate of the step: "redis" if Redis is full. If the machine is
// full, it returns the group that uses most cores; the processes of the step are not considered.
// Otherwise it returns "none": only the processes' shares of a core limit the rate.
func (f *figures) bottleneck() string {
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

// requests returns the number of requests of the given kinds to a server, according to the metrics
// m of the processes.
func requests(m map[string]float64, server string, kinds ...string) (n float64) {
	for _, k := range kinds {
		n += m[fmt.Sprintf(`notifyd_server_requests_total{kind=%q,server=%q}`, k, server)]
	}
	return n
}

var statements = []string{"swap", "serial_read", "read", "write", "logged_batch", "scattered_batch"}

// measure is a figure of a step: its key, its description, the format of its value, and the
// function that returns the value.
type measure struct {
	key, about, format string
	of                 func(*figures) float64
}

// measures are the figures of a step, in the order in which they are printed. A step prints them as
// key=value pairs. The table shows them for all steps.
var measures = []measure{
	{"per_second", "messages ended a second", "%.0f", (*figures).perSecond},
	{"end_p99_s", "s until 99% of the messages had ended", "%.1f", func(f *figures) float64 {
		return f.timeOf(0.99 * float64(f.count)).Sub(f.from).Seconds()
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
	{"rest_cores", "cores at rest, of all processes", "%.3f", func(f *figures) float64 { return coresBetween(f.calm[0], f.calm[1])[processes] }},
	{"rest_kafka_cores", "cores of Kafka at rest", "%.3f", func(f *figures) float64 { return coresBetween(f.calm[0], f.calm[1])["kafka"] }},
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
// step's rate divided by the rate of one process.
func (f *figures) line(times float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "load=%s processes=%d share=%.2f count=%d times=%.2f", f.load, f.processes, f.share, f.count, times)
	for _, m := range measures {
		fmt.Fprintf(&b, " %s="+m.format, m.key, m.of(f))
	}
	fmt.Fprintf(&b, " lost=%d twice=%d full=%s", f.lost, f.twice, f.bottleneck())
	return b.String()
}

// If the number of processes is multiplied by n, a figure is multiplied by n^e. The figure "grows"
// if e is growsFrom or more. It "stays" if e is between -staysTo and staysTo. See trend.
const (
	growsFrom = 0.75
	staysTo   = 0.25
)

// table returns a Markdown table of the steps of one load. It has a row for each measure and a
// column for each step.
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

// trend describes how a figure changes from the value before to the value after while the number of
// processes is multiplied by the factor. It returns "" if it cannot compare the two values.
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

// verdict collects the steps of a run and decides whether the run has failed.
type verdict struct {
	judge  bool // true: the run also fails if a step is slow
	broken bool // true: a message was lost or sent twice, or a step had no message

	steps map[string][]figures // name of a load -> its steps
	loads []string             // names of the loads, in the order of their first steps
	times map[string][]string  // name of a load -> the ratio of each step, as text
	slow  []string             // steps below the needed rate whose bottleneck is "none" or "others"
}

// add adds a step. It returns the step's rate divided by the rate of one process. The first step of
// each load must have one process.
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
		full := f.bottleneck()
		text += "(" + full + ")"
		if full == "none" || full == others {
			v.slow = append(v.slow, fmt.Sprintf("%s:%d", f.load, f.processes))
		}
	}
	v.times[f.load] = append(v.times[f.load], text)
	v.broken = v.broken || f.lost > 0 || f.twice > 0 || f.count == 0
	return times
}

// line returns the ratios of each load, and the slow steps, as key=value pairs. The result ok is
// false if the run has failed.
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
