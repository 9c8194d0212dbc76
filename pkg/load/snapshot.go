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
	Intended  float64 `json:"intended"` // due by the schedule
	Sent      float64 `json:"sent"`
	Acked     float64 `json:"acked"`     // accepted by the server
	Delivered float64 `json:"delivered"` // taken by a simulated provider, or called back
	Failed    float64 `json:"failed"`    // of requests that failed, and rejected
}

// Totals count messages from the beginning of a run.
type Totals struct {
	Intended  int64 `json:"intended"`
	Sent      int64 `json:"sent"`
	Acked     int64 `json:"acked"`
	Delivered int64 `json:"delivered"`
	Failed    int64 `json:"failed"`   // of requests without a good answer: not known to be stored
	Rejected  int64 `json:"rejected"` // refused one by one in a good answer

	// The ledger's. Lost is 0 until the drain ends: absence needs complete evidence.
	Lost       int64 `json:"lost"`
	Duplicates int64 `json:"duplicates"`
	Early      int64 `json:"early"` // scheduled work before its time
	Late       int64 `json:"late"`  // scheduled work more than LateAfter after it
	Reordered  int64 `json:"reordered"`
	Unexpected int64 `json:"unexpected"` // ended in a state nobody expected, or came without having been accepted
	Unverified int64 `json:"unverified"` // neither delivered nor known to be lost when the drain's time was over
	Backlog    int64 `json:"backlog"`    // acked and not delivered
}

// LateAfter is how long after its time scheduled work counts as late.
const LateAfter = time.Second

// StepSnapshot is one step of one phase.
type StepSnapshot struct {
	Name     string `json:"name"`
	Phase    string `json:"phase"`
	Warmup   bool   `json:"warmup,omitempty"` // recorded, and no part of totals' percentiles or thresholds
	Target   string `json:"target"`
	Channel  string `json:"channel"`  // "mixed" where a step sends several
	Category string `json:"category"` // likewise
	Arrival  string `json:"arrival"`  // e.g. "constant 200/s"

	Rates  Rates  `json:"rates"`
	Totals Totals `json:"totals"`

	Lag      Quantiles `json:"lag"`        // sent - intended
	Service  Quantiles `json:"service"`    // done - sent
	Response Quantiles `json:"response"`   // done - intended
	EndToEnd Quantiles `json:"end_to_end"` // delivered - intended
	Lateness Quantiles `json:"lateness"`   // signed: delivered - due, of scheduled work and triggers
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
	Class string    `json:"class"` // notify.Kind, "transport" or "rejected"
	Code  string    `json:"code"`
	Step  string    `json:"step"`
	Count int64     `json:"count"`
	Last  time.Time `json:"last"`
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
	CPU            float64       `json:"cpu"`      // cores used by this process
	CPUs           float64       `json:"cpus"`     // cores it may use
	GCPause        time.Duration `json:"gc_pause"` // longest
	GCCPU          float64       `json:"gc_cpu"`   // cores
	Goroutines     int           `json:"goroutines"`
	RSS            int64         `json:"rss"`        // bytes
	Steal          float64       `json:"steal"`      // share of the machine's time that others took, 0 to 1
	MachineCPU     float64       `json:"machine"`    // cores busy on the machine, all processes
	Sockets        int           `json:"sockets"`    // open ones of this process
	LagP99         time.Duration `json:"lag_p99_ns"` // how late it woke for a message it was waiting for
	Busy           float64       `json:"busy"`       // share of the workers that waited for an answer, 0 to 1
	CalibratedRate float64       `json:"calibrated"` // messages/s it reached before the run against the null sink
	GeneratorShare float64       `json:"share"`      // intended rate / CalibratedRate: above 0.8 it is the limit itself
	Embedded       bool          `json:"embedded"`   // notifyd runs in this process: CPU is of both
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
	Second int                `json:"second"`
	Counts [HeatBuckets]int64 `json:"counts"`
}

// SecondRow is one second of a run.
type SecondRow struct {
	Second    int    `json:"second"` // from 0
	Phase     string `json:"phase"`
	Draining  bool   `json:"draining,omitempty"`
	Intended  int64  `json:"intended"` // in this second, like those that follow
	Sent      int64  `json:"sent"`
	Acked     int64  `json:"acked"`
	Delivered int64  `json:"delivered"`
	Failed    int64  `json:"failed"` // rejected ones included
	Backlog   int64  `json:"backlog"`

	Response Brief         `json:"response"`
	Lag      Brief         `json:"lag"`
	Service  Brief         `json:"service"`
	Steps    []SecondStep  `json:"steps,omitempty"`
	Health   Health        `json:"health"`
	Length   time.Duration `json:"length_ns"` // nearly a second
}

// SecondStep is one step in one second.
type SecondStep struct {
	Name     string `json:"name"`
	Sent     int64  `json:"sent"`
	Acked    int64  `json:"acked"`
	Failed   int64  `json:"failed"`
	Response Brief  `json:"response"`
	Service  Brief  `json:"service"`
}

// Brief is the quantiles of one second, in nanoseconds.
type Brief struct {
	Count int64 `json:"count"`
	P50   int64 `json:"p50"`
	P99   int64 `json:"p99"`
	Max   int64 `json:"max"`
}

// Result is all that is left of a run; as JSON it is the file that is kept.
type Result struct {
	Schema      int         `json:"schema"`
	Scenario    Source      `json:"scenario"`
	Started     time.Time   `json:"started"`
	Ended       time.Time   `json:"ended"`
	Environment Environment `json:"environment"`
	Segment     Segment     `json:"segment"`

	// Sending is how long the phases took, DrainTime how long after them the last
	// delivery came.
	Sending   time.Duration `json:"sending_ns"`
	DrainTime time.Duration `json:"drain_ns"`

	Totals     Totals           `json:"totals"`
	Rates      Rates            `json:"rates"` // means over Sending; Delivered over Sending + DrainTime
	Steps      []StepResult     `json:"steps"`
	Seconds    []SecondRow      `json:"seconds"`
	Heat       []HeatColumn     `json:"heat,omitempty"`
	Intervals  []Interval       `json:"intervals,omitempty"`
	Errors     []ErrorCount     `json:"errors,omitempty"`
	Thresholds []ThresholdState `json:"thresholds,omitempty"`
	Verdict    Verdict          `json:"verdict"`
	Faults     []FaultResult    `json:"faults,omitempty"`
	Markers    []Marker         `json:"markers,omitempty"`
	Health     HealthSummary    `json:"health"`
	Server     Server           `json:"server"`
	Ledger     LedgerResult     `json:"ledger"`
	Exit       int              `json:"exit"` // that of the command
	Partial    bool             `json:"partial,omitempty"`
	Steered    []SteerChange    `json:"steered,omitempty"` // by hand, during the run
	Stopped    string           `json:"stopped,omitempty"` // why it ended early
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
	StepSnapshot
	Histograms Histograms `json:"histograms"`
	// EndToEndParts are the end-to-end times by when a message was due: equal parts of
	// the run, of a second or more and at most 300. They say how much these times vary.
	EndToEndParts []Brief `json:"end_to_end_parts,omitempty"`
}

// Histograms are HdrHistograms in the V2 compressed encoding, base64, of
// nanoseconds. An empty one is "".
type Histograms struct {
	Lag      string `json:"lag,omitempty"`
	Service  string `json:"service,omitempty"`
	Response string `json:"response,omitempty"`
	EndToEnd string `json:"end_to_end,omitempty"`
	Late     string `json:"late,omitempty"`  // lateness of what was not early
	Early    string `json:"early,omitempty"` // how long before its time, of what was
}

// Interval is one line of a .hlog: a histogram of a part of the run.
type Interval struct {
	Start     time.Duration `json:"start_ns"` // since the run's start
	Length    time.Duration `json:"length_ns"`
	Step      string        `json:"step"`
	Phase     string        `json:"phase"`
	Kind      string        `json:"kind"` // lag, service, response
	Max       int64         `json:"max"`
	Histogram string        `json:"histogram"`
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
	Health                  // means; GCPause, RSS, Goroutines, Sockets and LagP99 the highest
	CPUSeconds      float64 `json:"cpu_seconds"`
	NsPerMessage    float64 `json:"ns_per_message"`   // of CPU, by messages sent
	WorstLagSecond  int     `json:"worst_lag_second"` // with the highest lag p99
	CalibrationTook float64 `json:"calibration_seconds"`
}

// LedgerResult is the proof: what became of all that was accepted.
type LedgerResult struct {
	Checked    bool  `json:"checked"` // false: nobody was asked
	Expected   int64 `json:"expected"`
	Delivered  int64 `json:"delivered"`
	Lost       int64 `json:"lost"`
	Pending    int64 `json:"pending"` // on their way when the drain's time was over
	Ended      int64 `json:"ended"`   // not delivered, and the server says so: FAILED, SUPPRESSED, ...
	Duplicates int64 `json:"duplicates"`
	Early      int64 `json:"early"`
	Late       int64 `json:"late"`
	Reordered  int64 `json:"reordered"`
	Unexpected int64 `json:"unexpected"`
	Unverified int64 `json:"unverified"`
	// Sampled is of how many the times were looked up; 0: of all. Early, Late and what
	// is end-to-end are then of these.
	Sampled  int64    `json:"sampled,omitempty"`
	Examples []string `json:"examples,omitempty"` // ids that were not delivered, or twice
}
