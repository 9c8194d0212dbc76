package load

import "time"

// SchemaVersion is the version of Result as JSON. It rises when an older reader would misread a
// file.
const SchemaVersion = 1

// Snapshot is the state of a run at one moment. It is never changed after it was made, so any
// number of readers may keep it. All counts and rates are of messages, not of requests: a
// fan-out of 50,000 receivers counts 50,000.
type Snapshot struct {
	At      time.Time     `json:"at"`
	Elapsed time.Duration `json:"elapsed_ns"` // since the first phase began
	Planned time.Duration `json:"planned_ns"` // length of all phases, without the drain; 0: a count ends them
	State   State         `json:"state"`
	Phase   Phase         `json:"phase"`

	Steer    *SteerState `json:"steer,omitempty"` // nil: the run cannot be steered
	Scenario string      `json:"scenario"`
	Verdict  string      `json:"verdict"` // verdict so far: VALID, GENERATOR_BOUND, SINK_BOUND, CONCURRENCY_BOUND or INCONCLUSIVE

	Rates  Rates  `json:"rates"` // over the last complete second
	Totals Totals `json:"totals"`

	Steps      []StepSnapshot   `json:"steps"` // of all phases that have begun, in the order of the scenario
	Errors     []ErrorCount     `json:"errors,omitempty"`
	Thresholds []ThresholdState `json:"thresholds,omitempty"`
	Health     Health           `json:"health"`
	Server     Server           `json:"server"`
	Agents     []Agent          `json:"agents,omitempty"` // agents that send the load; none: this process sends it
	Markers    []Marker         `json:"markers,omitempty"`
	Seconds    []SecondRow      `json:"seconds"`        // complete seconds, the oldest first; at most the last KeepSeconds
	Heat       []HeatColumn     `json:"heat,omitempty"` // the same seconds
}

// KeepSeconds bounds Snapshot.Seconds and Snapshot.Heat. A Result has all seconds.
const KeepSeconds = 600

// State says what a run is doing.
type State string

// The states, in their order.
const (
	StateCalibrating State = "calibrating"
	StateRunning     State = "running"
	StateDraining    State = "draining"           // everything is sent; the run waits for deliveries
	StateReading     State = "reading the ledger" // everything has arrived; the run reads the times from the simulators
	StateDone        State = "done"
)

// Phase describes the current phase of a run.
type Phase struct {
	Name  string        `json:"name"`
	Index int           `json:"index"` // from 0
	Of    int           `json:"of"`
	Began time.Duration `json:"began_ns"` // since the run's start
	Ends  time.Duration `json:"ends_ns"`  // planned; 0: not known
}

// Rates are messages per second.
type Rates struct {
	Intended  float64 `json:"intended" merge:"sum"` // due by the schedule
	Sent      float64 `json:"sent" merge:"sum"`
	Acked     float64 `json:"acked" merge:"sum"`     // accepted by the server
	Delivered float64 `json:"delivered" merge:"sum"` // accepted by a simulated provider, or called back
	Failed    float64 `json:"failed" merge:"sum"`    // in requests that failed, or rejected one by one
}

// Totals counts messages since the start of a run.
type Totals struct {
	Intended  int64 `json:"intended" merge:"sum"`
	Sent      int64 `json:"sent" merge:"sum"`
	Acked     int64 `json:"acked" merge:"sum"`
	Delivered int64 `json:"delivered" merge:"sum"`
	Failed    int64 `json:"failed" merge:"sum"`   // in requests without a good answer: the server may have stored them or not
	Rejected  int64 `json:"rejected" merge:"sum"` // rejected one by one in a good answer

	// From the ledger. Lost is 0 until the drain ends: before that a missing message may still come.
	Lost       int64 `json:"lost" merge:"sum"`
	Duplicates int64 `json:"duplicates" merge:"once"`
	Early      int64 `json:"early" merge:"sum"` // scheduled messages delivered before their time
	Late       int64 `json:"late" merge:"sum"`  // scheduled messages delivered more than LateAfter after their time
	Reordered  int64 `json:"reordered" merge:"once"`
	Unexpected int64 `json:"unexpected" merge:"sum"` // ended in a state that the scenario does not expect, or arrived without having been accepted
	Unverified int64 `json:"unverified" merge:"sum"` // neither delivered nor known to be lost when the drain ended
	Backlog    int64 `json:"backlog" merge:"sum"`    // acknowledged and not delivered yet
}

// LateAfter is how long after its time a scheduled message counts as late.
const LateAfter = time.Second

// StepSnapshot describes one step of one phase.
type StepSnapshot struct {
	Name     string `json:"name" merge:"key"`
	Phase    string `json:"phase" merge:"key"`
	Warmup   bool   `json:"warmup,omitempty" merge:"first"` // recorded, but no part of percentiles of the run or of thresholds
	Target   string `json:"target" merge:"first"`
	Channel  string `json:"channel" merge:"first"`  // "mixed" if the step sends several
	Category string `json:"category" merge:"first"` // "mixed" if the step sends several
	Arrival  string `json:"arrival" merge:"first"`  // e.g. "constant 200/s"

	Rates  Rates  `json:"rates" merge:"each"`
	Totals Totals `json:"totals" merge:"each"`

	Lag      Quantiles `json:"lag" merge:"own"`        // sent - intended
	Service  Quantiles `json:"service" merge:"own"`    // done - sent
	Response Quantiles `json:"response" merge:"own"`   // done - intended
	EndToEnd Quantiles `json:"end_to_end" merge:"own"` // delivered - intended
	Lateness Quantiles `json:"lateness" merge:"own"`   // signed: delivered - due, of scheduled messages and triggers
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

// ErrorCount counts the messages of requests that failed in one way.
type ErrorCount struct {
	Class string    `json:"class" merge:"key"` // notify.Kind, "transport" or "rejected"
	Code  string    `json:"code" merge:"key"`
	Step  string    `json:"step" merge:"key"`
	Count int64     `json:"count" merge:"sum"`
	Last  time.Time `json:"last" merge:"max"`
}

// ThresholdState is a threshold and whether it holds at the moment.
type ThresholdState struct {
	Expr  string        `json:"expr"`
	Value float64       `json:"value"` // in nanoseconds for times; 0 if Known is false
	Known bool          `json:"known"` // the metric had a value to judge
	OK    bool          `json:"ok"`
	Since time.Duration `json:"since_ns"` // when OK last changed, since the run's start
	Abort bool          `json:"abort"`    // the run ends if the threshold is missed
}

// Health holds figures of the process of the generator over the last second.
type Health struct {
	CPU            float64       `json:"cpu" merge:"sum"`      // cores used by this process
	CPUs           float64       `json:"cpus" merge:"sum"`     // cores that it may use
	GCPause        time.Duration `json:"gc_pause" merge:"max"` // longest
	GCCPU          float64       `json:"gc_cpu" merge:"sum"`   // cores
	Goroutines     int           `json:"goroutines" merge:"sum"`
	RSS            int64         `json:"rss" merge:"sum"`        // bytes
	Steal          float64       `json:"steal" merge:"max"`      // share of the time of the machine that the hypervisor gave to others, 0 to 1
	MachineCPU     float64       `json:"machine" merge:"max"`    // cores that all processes of the machine used
	Sockets        int           `json:"sockets" merge:"sum"`    // open sockets of this process
	LagP99         time.Duration `json:"lag_p99_ns" merge:"max"` // how late workers woke that waited for the due time of a message
	Busy           float64       `json:"busy" merge:"max"`       // share of the workers that waited for an answer, 0 to 1
	CalibratedRate float64       `json:"calibrated" merge:"sum"` // messages/s that calibration reached against the null sink, before the run
	GeneratorShare float64       `json:"share" merge:"max"`      // intended rate / CalibratedRate: above 0.8 the generator is the limit
	Embedded       bool          `json:"embedded" merge:"or"`    // notifyd runs in this process, so CPU includes it
}

// Server holds what the server reports about itself; it is zero if the server reports nothing.
type Server struct {
	Known         bool             `json:"known"`
	Lag           map[string]int64 `json:"lag,omitempty"`      // consumer lag: unread records of first attempts and retries, by lane
	Backlog       int64            `json:"backlog"`            // as Totals.Backlog: acknowledged and not delivered
	TimerLateness Quantiles        `json:"timer_lateness"`     // lateness of releases in the last minute
	Circuits      map[string]int64 `json:"circuits,omitempty"` // by provider; 1: the circuit breaker is open
	DLQ           int64            `json:"dlq"`                // dead letters in the index of the server
}

// Marker is a vertical line across the charts.
type Marker struct {
	At   time.Duration `json:"at_ns"` // since the run's start
	Kind string        `json:"kind"`  // phase, fault, heal, threshold, steer, user
	Text string        `json:"text"`
}

// HeatBuckets is how many ranges of latency a HeatColumn tells apart.
const HeatBuckets = 24

// HeatBound returns the upper bound of bucket i: 32 us doubled i times. The last bucket has no
// upper bound.
func HeatBound(i int) time.Duration { return 32 * time.Microsecond << i }

// HeatColumn counts the responses of one second by latency.
type HeatColumn struct {
	Second int                `json:"second" merge:"key"`
	Counts [HeatBuckets]int64 `json:"counts" merge:"each"`
}

// SecondRow holds the figures of one second of a run.
type SecondRow struct {
	Second    int    `json:"second" merge:"key"` // from 0
	Phase     string `json:"phase" merge:"first"`
	Draining  bool   `json:"draining,omitempty" merge:"and"`
	Intended  int64  `json:"intended" merge:"sum"` // in this second; so are the counts below
	Sent      int64  `json:"sent" merge:"sum"`
	Acked     int64  `json:"acked" merge:"sum"`
	Delivered int64  `json:"delivered" merge:"once"`
	Failed    int64  `json:"failed" merge:"sum"` // failed or rejected
	Backlog   int64  `json:"backlog" merge:"sum"`

	Response Brief         `json:"response" merge:"each"`
	Lag      Brief         `json:"lag" merge:"each"`
	Service  Brief         `json:"service" merge:"each"`
	Steps    []SecondStep  `json:"steps,omitempty" merge:"each"`
	Health   Health        `json:"health" merge:"each"`
	Length   time.Duration `json:"length_ns" merge:"max"` // nearly a second
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

// Brief holds a few quantiles of a short time, in nanoseconds.
type Brief struct {
	Count int64 `json:"count" merge:"sum"`
	P50   int64 `json:"p50" merge:"max"`
	P99   int64 `json:"p99" merge:"max"`
	Max   int64 `json:"max" merge:"max"`
}

// Result holds everything that a run leaves. Encoded as JSON it is the file that is stored.
type Result struct {
	Schema      int         `json:"schema" merge:"first"`
	Scenario    Source      `json:"scenario" merge:"first"`
	Started     time.Time   `json:"started" merge:"own"`
	Ended       time.Time   `json:"ended" merge:"own"`
	Environment Environment `json:"environment" merge:"first"`
	Segment     Segment     `json:"segment" merge:"own"`

	// Sending is how long the phases took. DrainTime is how long after them the last delivery
	// arrived.
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
	Agents     []Agent          `json:"agents,omitempty" merge:"join"` // agents that sent the load; none: one process sent it
	Ledger     LedgerResult     `json:"ledger" merge:"each"`
	Exit       int              `json:"exit" merge:"first"` // exit code of the command
	Partial    bool             `json:"partial,omitempty" merge:"or"`
	Steered    []SteerChange    `json:"steered,omitempty" merge:"own"`   // changes by hand during the run
	Stopped    string           `json:"stopped,omitempty" merge:"first"` // why the run ended early
}

// Source is the scenario that a run followed.
type Source struct {
	Name   string `json:"name"`
	About  string `json:"about,omitempty"`
	Digest string `json:"digest"` // SHA-256 of YAML, hexadecimal
	YAML   string `json:"yaml"`   // with every default filled in
	Seed   uint64 `json:"seed"`
	Scale  string `json:"scale,omitempty"` // e.g. "short"; empty: as written
}

// Environment describes where a run took place.
type Environment struct {
	Version   string            `json:"version"` // of notifyctl
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
	Server    string            `json:"server,omitempty"` // address; "embedded"
	Labels    map[string]string `json:"labels,omitempty"` // labels that the caller gave
	Collector string            `json:"gogc,omitempty"`
}

// Segment says which part of a scenario a run sent: 1/1 is all of it.
type Segment struct {
	I int `json:"i"` // from 1
	N int `json:"n"`
}

// StepResult is a StepSnapshot with its histograms.
type StepResult struct {
	StepSnapshot `merge:"each"`
	Histograms   Histograms `json:"histograms" merge:"each"`
	// EndToEndParts holds the end-to-end times by the due time of the message. The run is cut
	// into at most 300 equal parts of a second or more. They show how much the times vary.
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
	Early    string `json:"early,omitempty" merge:"hist"` // how long before their time the early messages came
}

// Interval is one line of a .hlog: a histogram of a part of the run.
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
	GeneratorBound = "GENERATOR_BOUND" // the figures show the generator, not the server
	SinkBound      = "SINK_BOUND"      // the server did not take what was offered
	// ConcurrencyBound says that all workers waited for answers of the server, so requests started
	// late. Response times count from the due time of a request: they are those of the server, for
	// this number of requests at a time.
	ConcurrencyBound = "CONCURRENCY_BOUND"
	Inconclusive     = "INCONCLUSIVE" // too little, too short, or too disturbed to say
)

// Verdict says whether the figures of a run are those of the server.
type Verdict struct {
	Code    string   `json:"code"`
	Reasons []string `json:"reasons,omitempty"`
}

// FaultResult describes what one fault did.
type FaultResult struct {
	Name  string        `json:"name"`
	Began time.Duration `json:"began_ns"` // since the run's start
	Ended time.Duration `json:"ended_ns"`
	// BacklogBefore is the backlog at the start of the fault, and BacklogPeak the highest until
	// it was drained. Drained is how long after the end of the fault the backlog was back at
	// BacklogBefore; below 0: it did not get back.
	BacklogBefore int64         `json:"backlog_before"`
	BacklogPeak   int64         `json:"backlog_peak"`
	Drained       time.Duration `json:"drained_ns"`
	Error         string        `json:"error,omitempty"`
}

// HealthSummary is the health of the generator over the whole run.
type HealthSummary struct {
	Health          `merge:"each"` // means; but the highest of GCPause, RSS, Goroutines, Sockets, LagP99 and GeneratorShare
	CPUSeconds      float64        `json:"cpu_seconds" merge:"sum"`
	NsPerMessage    float64        `json:"ns_per_message" merge:"own"`   // CPU time by messages sent
	WorstLagSecond  int            `json:"worst_lag_second" merge:"own"` // second with the highest lag p99
	CalibrationTook float64        `json:"calibration_seconds" merge:"max"`
}

// LedgerResult says what happened to all accepted messages.
type LedgerResult struct {
	Checked    bool  `json:"checked" merge:"and"` // false: there was no ledger
	Expected   int64 `json:"expected" merge:"sum"`
	Delivered  int64 `json:"delivered" merge:"sum"`
	Lost       int64 `json:"lost" merge:"sum"`
	Pending    int64 `json:"pending" merge:"sum"` // still on their way when the drain ended
	Ended      int64 `json:"ended" merge:"sum"`   // not delivered, and the server has a terminal state for them: FAILED, SUPPRESSED, ...
	Duplicates int64 `json:"duplicates" merge:"once"`
	Early      int64 `json:"early" merge:"sum"`
	Late       int64 `json:"late" merge:"sum"`
	Reordered  int64 `json:"reordered" merge:"once"`
	Unexpected int64 `json:"unexpected" merge:"sum"`
	Unverified int64 `json:"unverified" merge:"sum"`

	Examples []string `json:"examples,omitempty" merge:"join"` // ids that were not delivered, or delivered twice
}
