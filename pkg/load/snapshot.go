package load

import "time"

// SchemaVersion is that of Result as JSON. It rises when a reader of the version
// before would misread a file.
const SchemaVersion = 1

// A Snapshot is a run at one moment. Nobody changes it after it was made, so any
// number of readers may keep it. All counts and rates are of messages, not of
// requests: a fan-out of 50,000 receivers counts 50,000.
type Snapshot struct {
	At      time.Time     `json:"at"`
	Elapsed time.Duration `json:"elapsed_ns"` // since the first phase began
	Planned time.Duration `json:"planned_ns"` // length of all phases, without the drain; 0: until a count is reached
	State   State         `json:"state"`
	Phase   Phase         `json:"phase"`

	Steer    *SteerState `json:"steer,omitempty"` // nil: it cannot be steered
	Scenario string      `json:"scenario"`
	Verdict  string      `json:"verdict"` // so far: VALID, GENERATOR_BOUND, SINK_BOUND, CONCURRENCY_BOUND or INCONCLUSIVE

	Rates  Rates  `json:"rates"` // over the last second that is complete
	Totals Totals `json:"totals"`

	Steps      []StepSnapshot   `json:"steps"` // of all phases begun, in the scenario's order
	Errors     []ErrorCount     `json:"errors,omitempty"`
	Thresholds []ThresholdState `json:"thresholds,omitempty"`
	Health     Health           `json:"health"`
	Server     Server           `json:"server"`
	Agents     []Agent          `json:"agents,omitempty"` // that send the load; none: this process does
	Markers    []Marker         `json:"markers,omitempty"`
	Seconds    []SecondRow      `json:"seconds"`        // complete ones, the oldest first; at most the last KeepSeconds
	Heat       []HeatColumn     `json:"heat,omitempty"` // the same seconds
}

// KeepSeconds bounds Snapshot.Seconds and Snapshot.Heat; a Result has them all.
const KeepSeconds = 600

// State is what a run does at the moment.
type State string

// The states, in their order.
const (
	StateCalibrating State = "calibrating"
	StateRunning     State = "running"
	StateDraining    State = "draining"           // sent all; waits for what was accepted
	StateReading     State = "reading the ledger" // all has come; asks the simulators when
	StateDone        State = "done"
)

// Phase names the phase a run is in.
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
	Delivered float64 `json:"delivered" merge:"sum"` // taken by a simulated provider, or called back
	Failed    float64 `json:"failed" merge:"sum"`    // of requests that failed, and rejected
}

// Totals count messages from the beginning of a run.
type Totals struct {
	Intended  int64 `json:"intended" merge:"sum"`
	Sent      int64 `json:"sent" merge:"sum"`
	Acked     int64 `json:"acked" merge:"sum"`
	Delivered int64 `json:"delivered" merge:"sum"`
	Failed    int64 `json:"failed" merge:"sum"`   // of requests without a good answer: not known to be stored
	Rejected  int64 `json:"rejected" merge:"sum"` // refused one by one in a good answer

	// The ledger's. Lost is 0 until the drain ends: absence needs complete evidence.
	Lost       int64 `json:"lost" merge:"sum"`
	Duplicates int64 `json:"duplicates" merge:"once"`
	Early      int64 `json:"early" merge:"sum"` // scheduled work before its time
	Late       int64 `json:"late" merge:"sum"`  // scheduled work more than LateAfter after it
	Reordered  int64 `json:"reordered" merge:"once"`
	Unexpected int64 `json:"unexpected" merge:"sum"` // ended in a state nobody expected, or came without having been accepted
	Unverified int64 `json:"unverified" merge:"sum"` // neither delivered nor known to be lost when the drain's time was over
	Backlog    int64 `json:"backlog" merge:"sum"`    // acked and not delivered
}

// LateAfter is how long after its time scheduled work counts as late.
const LateAfter = time.Second

// StepSnapshot is one step of one phase.
type StepSnapshot struct {
	Name     string `json:"name" merge:"key"`
	Phase    string `json:"phase" merge:"key"`
	Warmup   bool   `json:"warmup,omitempty" merge:"first"` // recorded, and no part of totals' percentiles or thresholds
	Target   string `json:"target" merge:"first"`
	Channel  string `json:"channel" merge:"first"`  // "mixed" where a step sends several
	Category string `json:"category" merge:"first"` // likewise
	Arrival  string `json:"arrival" merge:"first"`  // e.g. "constant 200/s"

	Rates  Rates  `json:"rates" merge:"each"`
	Totals Totals `json:"totals" merge:"each"`

	Lag      Quantiles `json:"lag" merge:"own"`        // sent - intended
	Service  Quantiles `json:"service" merge:"own"`    // done - sent
	Response Quantiles `json:"response" merge:"own"`   // done - intended
	EndToEnd Quantiles `json:"end_to_end" merge:"own"` // delivered - intended
	Lateness Quantiles `json:"lateness" merge:"own"`   // signed: delivered - due, of scheduled work and triggers
}

// Quantiles of one histogram, in nanoseconds. All are 0 while Count is.
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

// ErrorCount counts messages of requests that failed in one way.
type ErrorCount struct {
	Class string    `json:"class" merge:"key"` // notify.Kind, "transport" or "rejected"
	Code  string    `json:"code" merge:"key"`
	Step  string    `json:"step" merge:"key"`
	Count int64     `json:"count" merge:"sum"`
	Last  time.Time `json:"last" merge:"max"`
}

// ThresholdState is one threshold as it stands.
type ThresholdState struct {
	Expr  string        `json:"expr"`
	Value float64       `json:"value"` // nanoseconds for times; NaN is sent as 0 with Known false
	Known bool          `json:"known"` // there was something to judge
	OK    bool          `json:"ok"`
	Since time.Duration `json:"since_ns"` // since the run's start: when it last changed
	Abort bool          `json:"abort"`    // missing it ends the run
}

// Health is that of the generator: of its process, over the last second.
type Health struct {
	CPU            float64       `json:"cpu" merge:"sum"`      // cores used by this process
	CPUs           float64       `json:"cpus" merge:"sum"`     // cores it may use
	GCPause        time.Duration `json:"gc_pause" merge:"max"` // longest
	GCCPU          float64       `json:"gc_cpu" merge:"sum"`   // cores
	Goroutines     int           `json:"goroutines" merge:"sum"`
	RSS            int64         `json:"rss" merge:"sum"`        // bytes
	Steal          float64       `json:"steal" merge:"max"`      // share of the machine's time that others took, 0 to 1
	MachineCPU     float64       `json:"machine" merge:"max"`    // cores busy on the machine, all processes
	Sockets        int           `json:"sockets" merge:"sum"`    // open ones of this process
	LagP99         time.Duration `json:"lag_p99_ns" merge:"max"` // how late it woke for a message it was waiting for
	Busy           float64       `json:"busy" merge:"max"`       // share of the workers that waited for an answer, 0 to 1
	CalibratedRate float64       `json:"calibrated" merge:"sum"` // messages/s it reached before the run against the null sink
	GeneratorShare float64       `json:"share" merge:"max"`      // intended rate / CalibratedRate: above 0.8 it is the limit itself
	Embedded       bool          `json:"embedded" merge:"or"`    // notifyd runs in this process: CPU is of both
}

// Server is what the server under load says of itself; zero where it says nothing.
type Server struct {
	Known         bool             `json:"known"`
	Lag           map[string]int64 `json:"lag,omitempty"`      // records not read yet, first attempts and retries, by lane
	Backlog       int64            `json:"backlog"`            // of the totals: acked and not delivered
	TimerLateness Quantiles        `json:"timer_lateness"`     // of releases in the last minute
	Circuits      map[string]int64 `json:"circuits,omitempty"` // 1 where a breaker is open, by provider
	DLQ           int64            `json:"dlq"`                // dead letters in its index
}

// Marker is a line across the charts.
type Marker struct {
	At   time.Duration `json:"at_ns"` // since the run's start
	Kind string        `json:"kind"`  // phase, fault, heal, threshold, steer, user
	Text string        `json:"text"`
}

// HeatBuckets is how many latencies a HeatColumn tells apart.
const HeatBuckets = 24

// HeatBound is the upper bound of bucket i: 32 us doubled i times. The last bucket
// has none.
func HeatBound(i int) time.Duration { return 32 * time.Microsecond << i }

// HeatColumn counts the responses of one second by latency.
type HeatColumn struct {
	Second int                `json:"second" merge:"key"`
	Counts [HeatBuckets]int64 `json:"counts" merge:"each"`
}

// SecondRow is one second of a run.
type SecondRow struct {
	Second    int    `json:"second" merge:"key"` // from 0
	Phase     string `json:"phase" merge:"first"`
	Draining  bool   `json:"draining,omitempty" merge:"and"`
	Intended  int64  `json:"intended" merge:"sum"` // in this second, like those that follow
	Sent      int64  `json:"sent" merge:"sum"`
	Acked     int64  `json:"acked" merge:"sum"`
	Delivered int64  `json:"delivered" merge:"once"`
	Failed    int64  `json:"failed" merge:"sum"` // rejected ones included
	Backlog   int64  `json:"backlog" merge:"sum"`

	Response Brief         `json:"response" merge:"each"`
	Lag      Brief         `json:"lag" merge:"each"`
	Service  Brief         `json:"service" merge:"each"`
	Steps    []SecondStep  `json:"steps,omitempty" merge:"each"`
	Health   Health        `json:"health" merge:"each"`
	Length   time.Duration `json:"length_ns" merge:"max"` // nearly a second
}

// SecondStep is one step in one second.
type SecondStep struct {
	Name     string `json:"name" merge:"key"`
	Sent     int64  `json:"sent" merge:"sum"`
	Acked    int64  `json:"acked" merge:"sum"`
	Failed   int64  `json:"failed" merge:"sum"`
	Response Brief  `json:"response" merge:"each"`
	Service  Brief  `json:"service" merge:"each"`
}

// Brief is the quantiles of one second, in nanoseconds.
type Brief struct {
	Count int64 `json:"count" merge:"sum"`
	P50   int64 `json:"p50" merge:"max"`
	P99   int64 `json:"p99" merge:"max"`
	Max   int64 `json:"max" merge:"max"`
}

// Result is all that is left of a run; as JSON it is the file that is kept.
type Result struct {
	Schema      int         `json:"schema" merge:"first"`
	Scenario    Source      `json:"scenario" merge:"first"`
	Started     time.Time   `json:"started" merge:"own"`
	Ended       time.Time   `json:"ended" merge:"own"`
	Environment Environment `json:"environment" merge:"first"`
	Segment     Segment     `json:"segment" merge:"own"`

	// Sending is how long the phases took, DrainTime how long after them the last
	// delivery came.
	Sending   time.Duration `json:"sending_ns" merge:"own"`
	DrainTime time.Duration `json:"drain_ns" merge:"own"`

	Totals     Totals           `json:"totals" merge:"each"`
	Rates      Rates            `json:"rates" merge:"own"` // means over Sending; Delivered over Sending + DrainTime
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
	Agents     []Agent          `json:"agents,omitempty" merge:"join"` // that sent the load; none: one process did
	Ledger     LedgerResult     `json:"ledger" merge:"each"`
	Exit       int              `json:"exit" merge:"first"` // that of the command
	Partial    bool             `json:"partial,omitempty" merge:"or"`
	Steered    []SteerChange    `json:"steered,omitempty" merge:"own"`   // by hand, during the run
	Stopped    string           `json:"stopped,omitempty" merge:"first"` // why it ended early
}

// Source is the scenario a run followed.
type Source struct {
	Name   string `json:"name"`
	About  string `json:"about,omitempty"`
	Digest string `json:"digest"` // SHA-256 of YAML, hexadecimal
	YAML   string `json:"yaml"`   // with every default filled in
	Seed   uint64 `json:"seed"`
	Scale  string `json:"scale,omitempty"` // e.g. "short"; empty: as written
}

// Environment is where a run took place.
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
	Load      float64           `json:"load"`   // of the last minute, before the run
	Host      string            `json:"host,omitempty"`
	Server    string            `json:"server,omitempty"` // address; "embedded"
	Labels    map[string]string `json:"labels,omitempty"` // of the caller
	Collector string            `json:"gogc,omitempty"`
}

// Segment is the part of a scenario a run sent: 1/1 is all of it.
type Segment struct {
	I int `json:"i"` // from 1
	N int `json:"n"`
}

// StepResult is a StepSnapshot with its histograms.
type StepResult struct {
	StepSnapshot `merge:"each"`
	Histograms   Histograms `json:"histograms" merge:"each"`
	// EndToEndParts are the end-to-end times by when a message was due: equal parts of
	// the run, of a second or more and at most 300. They say how much these times vary.
	EndToEndParts []Brief `json:"end_to_end_parts,omitempty" merge:"each"`
}

// Histograms are HdrHistograms in the V2 compressed encoding, base64, of
// nanoseconds. An empty one is "".
type Histograms struct {
	Lag      string `json:"lag,omitempty" merge:"hist"`
	Service  string `json:"service,omitempty" merge:"hist"`
	Response string `json:"response,omitempty" merge:"hist"`
	EndToEnd string `json:"end_to_end,omitempty" merge:"hist"`
	Late     string `json:"late,omitempty" merge:"hist"`  // lateness of what was not early
	Early    string `json:"early,omitempty" merge:"hist"` // how long before its time, of what was
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
	// ConcurrencyBound: the server's answers used up the workers, so requests started
	// late. Response times count from when a request was due: they are the server's, with
	// so many requests at a time.
	ConcurrencyBound = "CONCURRENCY_BOUND"
	Inconclusive     = "INCONCLUSIVE" // too little, too short, or too disturbed to say
)

// Verdict says whether a run's figures are the server's.
type Verdict struct {
	Code    string   `json:"code"`
	Reasons []string `json:"reasons,omitempty"`
}

// FaultResult is what one fault did.
type FaultResult struct {
	Name  string        `json:"name"`
	Began time.Duration `json:"began_ns"` // since the run's start
	Ended time.Duration `json:"ended_ns"`
	// BacklogBefore is that at the beginning, BacklogPeak the highest until it was
	// drained, and Drained how long after the end of the fault the backlog was back;
	// below 0: it was not.
	BacklogBefore int64         `json:"backlog_before"`
	BacklogPeak   int64         `json:"backlog_peak"`
	Drained       time.Duration `json:"drained_ns"`
	Error         string        `json:"error,omitempty"`
}

// HealthSummary is that of the whole run.
type HealthSummary struct {
	Health          `merge:"each"` // means; GCPause, RSS, Goroutines, Sockets and LagP99 the highest
	CPUSeconds      float64        `json:"cpu_seconds" merge:"sum"`
	NsPerMessage    float64        `json:"ns_per_message" merge:"own"`   // of CPU, by messages sent
	WorstLagSecond  int            `json:"worst_lag_second" merge:"own"` // with the highest lag p99
	CalibrationTook float64        `json:"calibration_seconds" merge:"max"`
}

// LedgerResult is the proof: what became of all that was accepted.
type LedgerResult struct {
	Checked    bool  `json:"checked" merge:"and"` // false: nobody was asked
	Expected   int64 `json:"expected" merge:"sum"`
	Delivered  int64 `json:"delivered" merge:"sum"`
	Lost       int64 `json:"lost" merge:"sum"`
	Pending    int64 `json:"pending" merge:"sum"` // on their way when the drain's time was over
	Ended      int64 `json:"ended" merge:"sum"`   // not delivered, and the server says so: FAILED, SUPPRESSED, ...
	Duplicates int64 `json:"duplicates" merge:"once"`
	Early      int64 `json:"early" merge:"sum"`
	Late       int64 `json:"late" merge:"sum"`
	Reordered  int64 `json:"reordered" merge:"once"`
	Unexpected int64 `json:"unexpected" merge:"sum"`
	Unverified int64 `json:"unverified" merge:"sum"`

	Examples []string `json:"examples,omitempty" merge:"join"` // ids that were not delivered, or twice
}
