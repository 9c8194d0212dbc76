package load

import "time"

// SchemaVersion is the version of the JSON form of Result. It rises when programs that know only
// the old version would misread a new file.
const SchemaVersion = 1

// Snapshot is the state of a run at one moment. It never changes after it was made, so any number
// of readers may keep it. All counts and rates are of messages, not of requests: a fan-out to
// 50,000 receivers counts as 50,000.
type Snapshot struct {
	At      time.Time     `json:"at"`
	Elapsed time.Duration `json:"elapsed_ns"` // since the first phase began
	// Planned is the length of all phases, without the drain. It is 0 if a phase ends by counts,
	// because the length is then not known.
	Planned time.Duration `json:"planned_ns"`
	State   State         `json:"state"`
	Phase   Phase         `json:"phase"`

	Steer    *SteerState `json:"steer,omitempty"` // nil: the run cannot be steered
	Scenario string      `json:"scenario"`
	Verdict  string      `json:"verdict"` // verdict so far: VALID, GENERATOR_BOUND, SINK_BOUND, CONCURRENCY_BOUND or INCONCLUSIVE

	Rates  Rates  `json:"rates"` // rates in the last complete second
	Totals Totals `json:"totals"`

	Steps      []StepSnapshot   `json:"steps"` // steps that have begun, in the order of the scenario
	Errors     []ErrorCount     `json:"errors,omitempty"`
	Thresholds []ThresholdState `json:"thresholds,omitempty"`
	Health     Health           `json:"health"`
	Server     Server           `json:"server"`
	Agents     []Agent          `json:"agents,omitempty"` // agents that send the load; empty: this process sends it
	Markers    []Marker         `json:"markers,omitempty"`
	Seconds    []SecondRow      `json:"seconds"`        // complete seconds, the oldest first; at most the last KeepSeconds seconds
	Heat       []HeatColumn     `json:"heat,omitempty"` // one column for each of Seconds
}

// KeepSeconds is the highest number of seconds in Snapshot.Seconds and in Snapshot.Heat. A Result
// has all seconds.
const KeepSeconds = 600

// State says what a run is doing.
type State string

// The states, in their order.
const (
	StateCalibrating State = "calibrating"
	StateRunning     State = "running"
	StateDraining    State = "draining"           // everything is sent; the run waits for deliveries
	StateReading     State = "reading the ledger" // the wait for deliveries is over; the run reads the times from the simulators
	StateDone        State = "done"
)

// Phase describes the current phase of a run.
type Phase struct {
	Name  string        `json:"name"`
	Index int           `json:"index"`    // from 0
	Of    int           `json:"of"`       // number of phases
	Began time.Duration `json:"began_ns"` // since the run's start
	Ends  time.Duration `json:"ends_ns"`  // planned end, since the run's start; 0: not known
}

// Rates holds rates in messages per second.
type Rates struct {
	Intended  float64 `json:"intended" merge:"sum"` // due by the schedule
	Sent      float64 `json:"sent" merge:"sum"`
	Acked     float64 `json:"acked" merge:"sum"`     // accepted by the server
	Delivered float64 `json:"delivered" merge:"sum"` // accepted by a simulated provider, or called back
	Failed    float64 `json:"failed" merge:"sum"`    // messages of failed requests, and messages that the server rejected one by one
}

// Totals counts messages since the start of a run.
type Totals struct {
	Intended  int64 `json:"intended" merge:"sum"`
	Sent      int64 `json:"sent" merge:"sum"`
	Acked     int64 `json:"acked" merge:"sum"`
	Delivered int64 `json:"delivered" merge:"sum"`
	Failed    int64 `json:"failed" merge:"sum"`   // messages of requests without a good answer; the server may have stored them
	Rejected  int64 `json:"rejected" merge:"sum"` // messages that the server rejected one by one, in a good answer

	// The fields below come from the ledger. Lost is 0 until the drain ends, because a missing
	// message may still arrive.
	Lost       int64 `json:"lost" merge:"sum"`
	Duplicates int64 `json:"duplicates" merge:"once"`
	Early      int64 `json:"early" merge:"sum"` // scheduled messages delivered before their time
	Late       int64 `json:"late" merge:"sum"`  // scheduled messages delivered more than LateAfter after their time
	Reordered  int64 `json:"reordered" merge:"once"`
	// Unexpected counts messages that ended in a state that the scenario does not expect, and
	// messages that arrived although the server did not accept them.
	Unexpected int64 `json:"unexpected" merge:"sum"`
	Unverified int64 `json:"unverified" merge:"sum"` // neither delivered nor known to be lost when the drain ended
	Backlog    int64 `json:"backlog" merge:"sum"`    // acknowledged and not delivered yet
}

// LateAfter is the limit of lateness. A scheduled message that is delivered more than LateAfter
// after its time counts as late.
const LateAfter = time.Second

// StepSnapshot describes one step of one phase.
type StepSnapshot struct {
	Name  string `json:"name" merge:"key"`
	Phase string `json:"phase" merge:"key"`
	// Warmup is true if the step is recorded, but left out of thresholds and of percentiles of the
	// run.
	Warmup   bool   `json:"warmup,omitempty" merge:"first"`
	Target   string `json:"target" merge:"first"`
	Channel  string `json:"channel" merge:"first"`  // "mixed" if the step sends several channels
	Category string `json:"category" merge:"first"` // "mixed" if the step sends several categories
	Arrival  string `json:"arrival" merge:"first"`  // e.g. "constant 200/s"

	Rates  Rates  `json:"rates" merge:"each"`
	Totals Totals `json:"totals" merge:"each"`

	Lag      Quantiles `json:"lag" merge:"own"`        // sent - intended
	Service  Quantiles `json:"service" merge:"own"`    // done - sent
	Response Quantiles `json:"response" merge:"own"`   // done - intended
	EndToEnd Quantiles `json:"end_to_end" merge:"own"` // delivered - intended
	Lateness Quantiles `json:"lateness" merge:"own"`   // delivered - due, of scheduled messages and triggers; below 0: early
}

// Quantiles holds the quantiles of one histogram, in nanoseconds. All are 0 if Count is 0.
type Quantiles struct {
	Count int64 `json:"count"`
	Min   int64 `json:"min"`
	Mean  int64 `json:"mean"`
	P50   int64 `json:"p50"`
	P90   int64 `json:"p90"`
	P99   int64 `json:"p99"`
	P999  int64 `json:"p999"`
	P9999 int64 `json:"p9999"`
	Max   int64 `json:"max"`
}

// ErrorCount counts the messages of a step whose requests failed with the same class and code.
type ErrorCount struct {
	Class string    `json:"class" merge:"key"` // a notify.Kind, "transport" or "rejected"
	Code  string    `json:"code" merge:"key"`
	Step  string    `json:"step" merge:"key"`
	Count int64     `json:"count" merge:"sum"`
	Last  time.Time `json:"last" merge:"max"`
}

// ThresholdState is a threshold and whether it holds at the moment.
type ThresholdState struct {
	Expr  string        `json:"expr"`
	Value float64       `json:"value"`    // in nanoseconds if it is a time; 0 if Known is false
	Known bool          `json:"known"`    // false: the metric has no value that could be judged
	OK    bool          `json:"ok"`       // true: the condition holds
	Since time.Duration `json:"since_ns"` // when OK last changed; since the run's start
	Abort bool          `json:"abort"`    // true: the run ends if the threshold is missed
}

// Health describes the process of the generator in the last second.
type Health struct {
	CPU        float64       `json:"cpu" merge:"sum"`      // cores used by this process
	CPUs       float64       `json:"cpus" merge:"sum"`     // cores that it may use
	GCPause    time.Duration `json:"gc_pause" merge:"max"` // longest pause
	GCCPU      float64       `json:"gc_cpu" merge:"sum"`   // cores
	Goroutines int           `json:"goroutines" merge:"sum"`
	RSS        int64         `json:"rss" merge:"sum"` // bytes
	// Steal is the share of the machine's time that the hypervisor gave to other machines, 0 to 1.
	Steal      float64 `json:"steal" merge:"max"`
	MachineCPU float64 `json:"machine" merge:"max"` // cores that all processes of the machine used together
	Sockets    int     `json:"sockets" merge:"sum"` // open sockets of this process
	// LagP99 is the 99th percentile of how late workers woke. Only workers that waited for the due
	// time of a message count.
	LagP99 time.Duration `json:"lag_p99_ns" merge:"max"`
	// Busy is the share of the workers' time in which they waited for answers, 0 to 1.
	Busy float64 `json:"busy" merge:"max"`
	// CalibratedRate is the rate in messages/s that this machine generated without a server, before
	// the run.
	CalibratedRate float64 `json:"calibrated" merge:"sum"`
	// GeneratorShare is the intended rate divided by CalibratedRate. Above 0.8 the generator is the
	// limit.
	GeneratorShare float64 `json:"share" merge:"max"`
	// Embedded is true if notifyd runs in this process. Then CPU includes notifyd.
	Embedded bool `json:"embedded" merge:"or"`
}

// Server holds what the server reports about itself. All fields are zero if it reports nothing.
type Server struct {
	Known         bool             `json:"known"`
	Lag           map[string]int64 `json:"lag,omitempty"`      // consumer lag: unread records of first attempts and retries, by lane
	Backlog       int64            `json:"backlog"`            // same as Totals.Backlog: messages acknowledged and not delivered
	TimerLateness Quantiles        `json:"timer_lateness"`     // lateness of releases in the last minute
	Circuits      map[string]int64 `json:"circuits,omitempty"` // by provider; 1: the provider's circuit breaker is open
	DLQ           int64            `json:"dlq"`                // dead letters in the index of the server
}

// Marker is a vertical line across the charts.
type Marker struct {
	At   time.Duration `json:"at_ns"` // since the run's start
	Kind string        `json:"kind"`  // phase, fault, heal, threshold, steer, user
	Text string        `json:"text"`
}

// HeatBuckets is the number of latency ranges in a HeatColumn.
const HeatBuckets = 24

// HeatBound returns the upper bound of bucket i, which is 32 us times 2^i. The last bucket has no
// upper bound.
func HeatBound(i int) time.Duration { return 32 * time.Microsecond << i }

// HeatColumn counts the responses of one second by latency.
type HeatColumn struct {
	Second int                `json:"second" merge:"key"`
	Counts [HeatBuckets]int64 `json:"counts" merge:"each"`
}

// SecondRow holds the figures of one second of a run.
type SecondRow struct {
	Second    int    `json:"second" merge:"key"` // number of the second, from 0
	Phase     string `json:"phase" merge:"first"`
	Draining  bool   `json:"draining,omitempty" merge:"and"`
	Intended  int64  `json:"intended" merge:"sum"` // in this second; the counts below are of this second, too, except Backlog
	Sent      int64  `json:"sent" merge:"sum"`
	Acked     int64  `json:"acked" merge:"sum"`
	Delivered int64  `json:"delivered" merge:"once"`
	Failed    int64  `json:"failed" merge:"sum"`  // failed or rejected
	Backlog   int64  `json:"backlog" merge:"sum"` // at the end of the second

	Response Brief         `json:"response" merge:"each"`
	Lag      Brief         `json:"lag" merge:"each"`
	Service  Brief         `json:"service" merge:"each"`
	Steps    []SecondStep  `json:"steps,omitempty" merge:"each"`
	Health   Health        `json:"health" merge:"each"`
	Length   time.Duration `json:"length_ns" merge:"max"` // measured length: about a second, except for the last row
}

// SecondStep holds the figures of one step in one second.
type SecondStep struct {
	Name     string `json:"name" merge:"key"`
	Sent     int64  `json:"sent" merge:"sum"`
	Acked    int64  `json:"acked" merge:"sum"`
	Failed   int64  `json:"failed" merge:"sum"`
	Response Brief  `json:"response" merge:"each"`
	Service  Brief  `json:"service" merge:"each"`
}

// Brief holds a few quantiles of the times of a short interval, in nanoseconds.
type Brief struct {
	Count int64 `json:"count" merge:"sum"`
	P50   int64 `json:"p50" merge:"max"`
	P99   int64 `json:"p99" merge:"max"`
	Max   int64 `json:"max" merge:"max"`
}

// Result holds all figures of a finished run. The result file is its JSON encoding.
type Result struct {
	Schema      int         `json:"schema" merge:"first"`
	Scenario    Source      `json:"scenario" merge:"first"`
	Started     time.Time   `json:"started" merge:"own"`
	Ended       time.Time   `json:"ended" merge:"own"`
	Environment Environment `json:"environment" merge:"first"`
	Segment     Segment     `json:"segment" merge:"own"`

	// Sending is how long the phases took. DrainTime is the time from the end of the phases to the
	// last delivery.
	Sending   time.Duration `json:"sending_ns" merge:"own"`
	DrainTime time.Duration `json:"drain_ns" merge:"own"`

	Totals     Totals           `json:"totals" merge:"each"`
	Rates      Rates            `json:"rates" merge:"own"` // means over Sending; Delivered is the mean over Sending + DrainTime
	Steps      []StepResult     `json:"steps" merge:"each"`
	Seconds    []SecondRow      `json:"seconds" merge:"each"`
	Heat       []HeatColumn     `json:"heat,omitempty" merge:"each"`
	Intervals  []Interval       `json:"intervals,omitempty" merge:"each"`
	Errors     []ErrorCount     `json:"errors,omitempty" merge:"each"`
	Thresholds []ThresholdState `json:"thresholds,omitempty" merge:"own"`
	Verdict    Verdict          `json:"verdict" merge:"own"`
	Faults     []FaultResult    `json:"faults,omitempty" merge:"join"`
	Markers    []Marker         `json:"markers,omitempty" merge:"own"`
	Health     HealthSummary    `json:"health" merge:"each"`
	Server     Server           `json:"server" merge:"first"`
	Agents     []Agent          `json:"agents,omitempty" merge:"join"` // agents that sent the load; empty: one process sent it
	Ledger     LedgerResult     `json:"ledger" merge:"each"`
	Exit       int              `json:"exit" merge:"first"` // exit code of the command
	Partial    bool             `json:"partial,omitempty" merge:"or"`
	Steered    []SteerChange    `json:"steered,omitempty" merge:"own"`   // changes by hand during the run
	Stopped    string           `json:"stopped,omitempty" merge:"first"` // why the run ended early
}

// Source describes the scenario that a run followed.
type Source struct {
	Name   string `json:"name"`
	About  string `json:"about,omitempty"`
	Digest string `json:"digest"` // SHA-256 of YAML, hexadecimal
	YAML   string `json:"yaml"`   // the scenario, with every default filled in
	Seed   uint64 `json:"seed"`
	Scale  string `json:"scale,omitempty"` // e.g. "short"; empty: not scaled
}

// Environment describes where a run took place.
type Environment struct {
	Version   string            `json:"version"` // version of notifyctl
	Go        string            `json:"go"`
	OS        string            `json:"os"`
	Arch      string            `json:"arch"`
	Kernel    string            `json:"kernel,omitempty"`
	CPU       string            `json:"cpu,omitempty"` // model
	CPUs      int               `json:"cpus"`
	MaxProcs  int               `json:"maxprocs"`
	Memory    int64             `json:"memory"` // bytes
	Load      float64           `json:"load"`   // load average of the last minute, before the run
	Host      string            `json:"host,omitempty"`
	Server    string            `json:"server,omitempty"` // address of the server; "embedded" if it runs in this process
	Labels    map[string]string `json:"labels,omitempty"` // labels that the caller gave
	Collector string            `json:"gogc,omitempty"`
}

// Segment says which part of a scenario a run sent: part I of N. 1/1 is the whole scenario.
type Segment struct {
	I int `json:"i"` // from 1
	N int `json:"n"`
}

// StepResult is a StepSnapshot with its histograms.
type StepResult struct {
	StepSnapshot `merge:"each"`
	Histograms   Histograms `json:"histograms" merge:"each"`
	// EndToEndParts describes how much the end-to-end times vary during the run. The run is divided
	// into at most 300 equal parts of a second or more. Element i describes the messages that were
	// due in part i.
	EndToEndParts []Brief `json:"end_to_end_parts,omitempty" merge:"each"`
}

// Histograms holds HdrHistograms of nanoseconds in the V2 compressed encoding, as base64. An empty
// histogram is "".
type Histograms struct {
	Lag      string `json:"lag,omitempty" merge:"hist"`
	Service  string `json:"service,omitempty" merge:"hist"`
	Response string `json:"response,omitempty" merge:"hist"`
	EndToEnd string `json:"end_to_end,omitempty" merge:"hist"`
	Late     string `json:"late,omitempty" merge:"hist"`  // lateness of messages that were not early
	Early    string `json:"early,omitempty" merge:"hist"` // how long before their time early messages arrived
}

// Interval is one line of a .hlog file: a histogram of a part of the run, normally of 10 seconds.
type Interval struct {
	Start     time.Duration `json:"start_ns" merge:"key"` // since the run's start
	Length    time.Duration `json:"length_ns" merge:"key"`
	Step      string        `json:"step" merge:"key"`
	Phase     string        `json:"phase" merge:"key"`
	Kind      string        `json:"kind" merge:"key"` // lag, service, response
	Max       int64         `json:"max" merge:"max"`
	Histogram string        `json:"histogram" merge:"hist"`
}

// The verdicts.
const (
	Valid          = "VALID"
	GeneratorBound = "GENERATOR_BOUND" // the generator was the limit, so the figures do not describe the server
	SinkBound      = "SINK_BOUND"      // the server did not accept the load that was offered
	// ConcurrencyBound means that requests started late because all workers waited for answers of
	// the server. Response times count from the due time, so they include this wait. They describe
	// a server that gets at most as many requests at a time as there are workers.
	ConcurrencyBound = "CONCURRENCY_BOUND"
	Inconclusive     = "INCONCLUSIVE" // the run was too short, had too few messages, or was disturbed
)

// Verdict says whether the figures of a run describe the server.
type Verdict struct {
	Code    string   `json:"code"`
	Reasons []string `json:"reasons,omitempty"`
}

// FaultResult describes what one fault did.
type FaultResult struct {
	Name  string        `json:"name"`
	Began time.Duration `json:"began_ns"` // since the run's start
	Ended time.Duration `json:"ended_ns"`
	// BacklogBefore is the backlog at the end of the second in which the fault began. BacklogPeak
	// is the highest backlog after this. Drained is the time from the end of the fault until the
	// backlog was at most BacklogBefore plus 1% of BacklogPeak; below 0: the backlog did not fall
	// so far.
	BacklogBefore int64         `json:"backlog_before"`
	BacklogPeak   int64         `json:"backlog_peak"`
	Drained       time.Duration `json:"drained_ns"`
	Error         string        `json:"error,omitempty"`
}

// HealthSummary is the health of the generator over the whole run.
type HealthSummary struct {
	// Health holds means over the seconds of the run. But GCPause, RSS, Goroutines, Sockets, LagP99
	// and GeneratorShare are the highest values.
	Health          `merge:"each"`
	CPUSeconds      float64 `json:"cpu_seconds" merge:"sum"`
	NsPerMessage    float64 `json:"ns_per_message" merge:"own"`   // CPU time / messages sent
	WorstLagSecond  int     `json:"worst_lag_second" merge:"own"` // number of the second with the highest lag p99
	CalibrationTook float64 `json:"calibration_seconds" merge:"max"`
}

// LedgerResult counts what happened to all accepted messages.
type LedgerResult struct {
	Checked   bool  `json:"checked" merge:"and"`  // false: the run had no ledger
	Expected  int64 `json:"expected" merge:"sum"` // accepted messages
	Delivered int64 `json:"delivered" merge:"sum"`
	Lost      int64 `json:"lost" merge:"sum"`
	Pending   int64 `json:"pending" merge:"sum"` // still on their way when the drain ended
	// Ended counts messages that were not delivered and for which the server has a terminal state:
	// FAILED, SUPPRESSED, ...
	Ended      int64 `json:"ended" merge:"sum"`
	Duplicates int64 `json:"duplicates" merge:"once"`
	Early      int64 `json:"early" merge:"sum"`
	Late       int64 `json:"late" merge:"sum"`
	Reordered  int64 `json:"reordered" merge:"once"`
	Unexpected int64 `json:"unexpected" merge:"sum"`
	Unverified int64 `json:"unverified" merge:"sum"`

	Examples []string `json:"examples,omitempty" merge:"join"` // ids of messages that were not delivered, or were delivered twice
}
