package load

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/pkg/notify"
)

// The targets.
const (
	Null     = "null"        // makes the bodies and sends nothing, for calibration
	Single   = "http-single" // one notification a request
	Batch    = "http-batch"  // different notifications in a request
	Fanout   = "http-fanout" // one content for many receivers
	Kafka    = "kafka"       // envelopes written to the topics, without the API
	Schedule = "schedule"    // single scheduled notifications
	Trigger  = "trigger"     // scheduled callbacks
)

var targets = []string{Null, Single, Batch, Fanout, Kafka, Schedule, Trigger}

// Scenario describes one run. Its phases run one after the other, and the steps of a phase run side
// by side. The doc tags document the fields; `notifyctl load schema` prints them. A file with an
// unknown key is refused.
type Scenario struct {
	Name       string      `yaml:"name" doc:"name of the scenario in lists and reports"`
	About      string      `yaml:"about,omitempty" doc:"description for people: what the scenario shows"`
	Seed       uint64      `yaml:"seed,omitempty" doc:"seed of all data; the same seed sends the same messages"`
	Steps      []Step      `yaml:"steps,omitempty" doc:"steps of a run with one phase, instead of phases"`
	Duration   Duration    `yaml:"duration,omitempty" doc:"with steps: length of the only phase; not set: it ends when every step has sent its count"`
	Phases     []PhaseSpec `yaml:"phases,omitempty" doc:"phases, which run one after the other"`
	Drain      Duration    `yaml:"drain,omitempty" doc:"how long the run waits at most, after the last phase, until accepted messages have an outcome; default 2m"`
	Thresholds []Threshold `yaml:"thresholds,omitempty" doc:"conditions that must hold, e.g. response{step=otp}.p99 < 50ms; a missed one makes notifyctl exit with 99"`
	Objective  *Objective  `yaml:"objective,omitempty" doc:"what notifyctl load capacity searches for"`
	Server     ServerSpec  `yaml:"server,omitempty" doc:"the server that the run loads"`
	Expect     []string    `yaml:"expect,omitempty" doc:"outcomes that count as expected: states other than SENT and DELIVERED, e.g. FAILED, and duplicates"`
	Short      *Short      `yaml:"short,omitempty" doc:"how --short shrinks the scenario; default: a tenth of all rates and times"`
}

// PhaseSpec is one phase of a run.
type PhaseSpec struct {
	Name     string      `yaml:"name" doc:"name of the phase in reports and in thresholds, e.g. rate{phase=main}"`
	Duration Duration    `yaml:"duration,omitempty" doc:"length of the phase; not set: it ends when every step has sent its count"`
	Warmup   bool        `yaml:"warmup,omitempty" doc:"the phase is recorded, but thresholds leave it out"`
	Drain    Duration    `yaml:"drain,omitempty" doc:"how long the run waits at most, before the next phase, until all accepted messages have an outcome"`
	Steps    []Step      `yaml:"steps,omitempty" doc:"steps, which run side by side"`
	Faults   []FaultSpec `yaml:"faults,omitempty" doc:"faults during the phase"`
}

// Step is one stream of messages of the same kind.
type Step struct {
	Name      string     `yaml:"name,omitempty" doc:"name of the step in reports and in thresholds, e.g. response{step=otp}; default: its target"`
	Target    string     `yaml:"target,omitempty" doc:"where the messages go; null: messages are made but not sent" enum:"null|http-single|http-batch|http-fanout|kafka|schedule|trigger"`
	As        string     `yaml:"as,omitempty" doc:"target null: make the request bodies of this target; default http-single" enum:"http-single|http-batch|http-fanout"`
	Rate      Number     `yaml:"rate,omitempty" doc:"messages a second; without rate and arrival each worker sends its next request as soon as it has an answer (closed loop)"`
	Arrival   Arrival    `yaml:"arrival,omitempty" doc:"when messages are due; default constant. A single word is the shape"`
	Start     Duration   `yaml:"start,omitempty" doc:"how long after the start of the phase the step begins"`
	Count     Number     `yaml:"count,omitempty" doc:"number of messages; not set: the step ends with the phase"`
	Size      int        `yaml:"size,omitempty" doc:"messages in each request; default 1, in a batch or with target kafka 500, in a fan-out 50,000"`
	Workers   int        `yaml:"workers,omitempty" doc:"highest number of concurrent requests; default 64, for batches 16, for fan-outs 8"`
	Channel   string     `yaml:"channel,omitempty" doc:"channel of the messages; default push" enum:"push|sms|email"`
	Category  string     `yaml:"category,omitempty" doc:"category of the messages; default marketing for fan-outs, alert for SMS, otherwise transactional" enum:"otp|alert|transactional|marketing|digest"`
	Mix       []Share    `yaml:"mix,omitempty" doc:"several channels and categories, instead of channel and category"`
	Users     Users      `yaml:"users,omitempty" doc:"the users who get the messages. A single number is their count"`
	Payload   Payload    `yaml:"payload,omitempty" doc:"the text of a message. A single number is its length in bytes"`
	Addresses bool       `yaml:"addresses,omitempty" doc:"true: messages contain the address of each receiver; false: the server looks it up"`
	Ordered   bool       `yaml:"ordered,omitempty" doc:"http-single: the next message of a user waits for the answer to the message before it; each push contains a sequence number, with which the ledger checks the order"`
	Keys      bool       `yaml:"keys,omitempty" doc:"send an Idempotency-Key with each request"`
	Scheduled *LaterSpec `yaml:"scheduled,omitempty" doc:"schedule requests for a later time. With the targets schedule and trigger all requests are scheduled, by default 1s to 2s later"`
	Triggers  float64    `yaml:"triggers,omitempty" doc:"http-single: share of the requests that create a trigger instead of sending a notification, 0 to 1"`
}

// Share is one part of a mix.
type Share struct {
	Weight   float64 `yaml:"weight" doc:"share of the messages, relative to the sum of all weights"`
	Channel  string  `yaml:"channel" doc:"push, sms or email" enum:"push|sms|email"`
	Category string  `yaml:"category" doc:"category of the message" enum:"otp|alert|transactional|marketing|digest"`
}

// Users says which users get the messages.
type Users struct {
	Count Number  `yaml:"count,omitempty" doc:"number of users; default 5M"`
	Pick  string  `yaml:"pick,omitempty" doc:"how messages pick users. each: all users in turn; uniform: at random; zipf: some users far more often; hot: one user very often" enum:"each|uniform|zipf|hot"`
	Skew  float64 `yaml:"skew,omitempty" doc:"exponent of zipf, above 0; default 1.1"`
	Share float64 `yaml:"share,omitempty" doc:"share of the messages for the hot user, 0 to 1; default 0.1"`
}

// Payload says what text messages carry.
type Payload struct {
	Bytes int    `yaml:"bytes,omitempty" doc:"length of the text in bytes; with max: the smallest length"`
	Max   int    `yaml:"max,omitempty" doc:"largest length in bytes; each length from bytes to max is equally likely"`
	Text  string `yaml:"text,omitempty" doc:"the same text for all messages, instead of a length"`
}

// LaterSpec says when scheduled messages are due.
type LaterSpec struct {
	Share  float64  `yaml:"share,omitempty" doc:"share of the requests that are scheduled, 0 to 1; default 1"`
	After  Duration `yaml:"after,omitempty" doc:"how long after its request a scheduled message is due"`
	At     Duration `yaml:"at,omitempty" doc:"instead of after: the same due time for all messages, counted from the start of the run"`
	Spread Duration `yaml:"spread,omitempty" doc:"a random time up to this is added to the due time"`
}

// ServerSpec says which server gets the load.
type ServerSpec struct {
	Mode      string         `yaml:"mode,omitempty" doc:"context: the running server of the context or the flags; pipeline: notifyd in this process; process: notifyd in a process of its own, which faults can kill" enum:"context|pipeline|process"`
	Providers string         `yaml:"providers,omitempty" doc:"providers of mode pipeline: simulators over their real protocols, or a stub inside the process" enum:"simulators|stub"`
	Latency   Duration       `yaml:"latency,omitempty" doc:"modes pipeline and process: answer time of the simulators; default 5ms"`
	Profiles  Number         `yaml:"profiles,omitempty" doc:"pipeline: number of users whose profile, with a push address of 64 bytes, is stored before the run"`
	Set       map[string]any `yaml:"set,omitempty" doc:"modes pipeline and process: settings of notifyd, e.g. log.linger: 10ms"`
}

// FaultSpec is a fault that lasts for a while.
type FaultSpec struct {
	Name    string   `yaml:"name,omitempty" doc:"text that marks the fault in the charts"`
	At      Duration `yaml:"at,omitempty" doc:"how long after the start of the phase the fault begins"`
	For     Duration `yaml:"for,omitempty" doc:"how long the fault lasts; not set: until the end of the phase"`
	Process string   `yaml:"process,omitempty" doc:"mode process: end notifyd with SIGKILL (kill) or SIGTERM (stop) and start it again at the end of the fault, or halt it until then (pause)" enum:"kill|pause|stop"`

	Action string `yaml:"action,omitempty" doc:"an action of an operator when the fault begins; replay: replay all dead letters" enum:"replay"`

	Provider   string      `yaml:"provider,omitempty" doc:"provider with the fault: apns, fcm, oauth (tokens of fcm), twilio, sendgrid, or callback (the receiver of triggers); not set: all" enum:"apns|fcm|oauth|twilio|sendgrid|callback"`
	Account    string      `yaml:"account,omitempty" doc:"Twilio account SID, or number of the account from 1; not set: all"`
	Pool       string      `yaml:"pool,omitempty" doc:"SendGrid IP pool; not set: all"`
	Prefix     string      `yaml:"prefix,omitempty" doc:"only addresses with this prefix"`
	Share      float64     `yaml:"share,omitempty" doc:"share of the requests that fail, above 0 to 1; default 1"`
	Do         string      `yaml:"do,omitempty" doc:"what the provider does with these requests; notifyctl sim rule add --help explains the actions" enum:"error|outage|throttle|unauthorized|reset|reset_stream|drop|hang|drip|latency|redirect|huge|receipt"`
	Status     int         `yaml:"status,omitempty" doc:"error: HTTP status of the answer"`
	Code       string      `yaml:"code,omitempty" doc:"error: the provider's code in the answer; receipt: the code in the receipt"`
	RetryAfter Duration    `yaml:"retry_after,omitempty" doc:"error, throttle: time in the header Retry-After of the answer"`
	Latency    LatencySpec `yaml:"latency,omitempty" doc:"latency, drip: how long the answer takes"`
}

// LatencySpec is a distribution of latencies. Without a p99 every latency is the median. With a p99
// the distribution is lognormal.
type LatencySpec struct {
	Median Duration `yaml:"median" doc:"median of the answer times: half of the answers are faster"`
	P99    Duration `yaml:"p99,omitempty" doc:"99th percentile of the answer times; not set: all answers take the median"`
}

// Objective says which conditions a rate must meet in `notifyctl load capacity`, and how the
// command searches for the highest such rate.
type Objective struct {
	Step    string      `yaml:"step,omitempty" doc:"step whose rate is raised; default: all steps"`
	From    Number      `yaml:"from,omitempty" doc:"first rate to try, in messages a second; default a tenth of the rate of the steps"`
	Most    Number      `yaml:"most,omitempty" doc:"highest rate to try, in messages a second; not set: no limit. The search also ends at a rate that the load generator cannot send"`
	Hold    Duration    `yaml:"hold,omitempty" doc:"length of a trial; default 10s"`
	Confirm Duration    `yaml:"confirm,omitempty" doc:"length of the confirming trial; default three times hold"`
	Within  float64     `yaml:"within,omitempty" doc:"precision of the search, as a share of the rate; default 0.05 (5%)"`
	Holds   []Threshold `yaml:"holds,omitempty" doc:"conditions that a rate must meet; default lost == 0, failed == 0, backlog_slope < 0.01"`
}

// Short holds the factors by which --short shrinks a scenario. A factor of 0 means its default.
type Short struct {
	Rate  float64  `yaml:"rate,omitempty" doc:"multiplies all rates; default 0.1"`
	Time  float64  `yaml:"time,omitempty" doc:"multiplies all times of phases, steps and faults; default 0.1"`
	Count float64  `yaml:"count,omitempty" doc:"multiplies counts and profiles; default: the product of rate and time"`
	Drain Duration `yaml:"drain,omitempty" doc:"drain of the short form; default that of the scenario, at most 1m"`
	Holds []string `yaml:"thresholds,omitempty" doc:"thresholds of the short form; default those of the scenario on lost, duplicates, early, unexpected, unverified and ended"`
}

// SingleStep returns a scenario that has one phase with one step.
func SingleStep(name string, length time.Duration, s Step) Scenario {
	return Scenario{Name: name, Duration: Duration(length), Steps: []Step{s}}
}

// WithDefaults returns a copy of the scenario in which fields that are not set have their defaults.
func (s Scenario) WithDefaults() Scenario {
	if len(s.Phases) == 0 {
		s.Phases = []PhaseSpec{{Name: "main", Duration: s.Duration, Steps: s.Steps}}
		s.Steps, s.Duration = nil, 0
	}
	phases := make([]PhaseSpec, len(s.Phases))
	for i, p := range s.Phases {
		steps := make([]Step, len(p.Steps))
		for j, st := range p.Steps {
			steps[j] = st.withDefaults()
		}
		p.Steps = steps
		phases[i] = p
	}
	s.Phases = phases
	s.Drain = cmp.Or(s.Drain, Duration(2*time.Minute))
	return s
}

func (s Step) withDefaults() Step {
	s.Target = cmp.Or(s.Target, Single)
	s.Name = cmp.Or(s.Name, s.Target)
	if s.Target == Null && s.As == "" {
		s.As = Single
	}
	size, workers := 1, 64
	switch s.bodies() {
	case Batch, Kafka:
		size, workers = 500, 16
	case Fanout:
		size, workers = 50_000, 8
	}
	if s.Target == Null {
		workers = 2
	}
	s.Size = cmp.Or(s.Size, size)
	s.Workers = cmp.Or(s.Workers, workers)
	if len(s.Mix) == 0 {
		if s.Channel == "" {
			s.Channel = notify.Push.String()
		}
		if s.Category == "" {
			switch {
			case s.Channel == notify.SMS.String():
				s.Category = notify.Alert.String()
			case s.bodies() == Fanout:
				s.Category = notify.Marketing.String()
			default:
				s.Category = notify.Transactional.String()
			}
		}
	}
	s.Users.Count = cmp.Or(s.Users.Count, 5_000_000)
	s.Users.Pick = cmp.Or(s.Users.Pick, "each")
	if s.Users.Pick == "zipf" && s.Users.Skew == 0 {
		s.Users.Skew = 1.1
	}
	if s.Users.Pick == "hot" && s.Users.Share == 0 {
		s.Users.Share = 0.1
	}
	if s.Payload == (Payload{}) {
		s.Payload.Text = "Your order is on its way."
	}
	if s.Scheduled == nil && (s.Target == Schedule || s.Target == Trigger || s.Triggers > 0) {
		s.Scheduled = &LaterSpec{After: Duration(time.Second), Spread: Duration(time.Second)}
	}
	if s.Scheduled != nil && s.Scheduled.Share == 0 {
		later := *s.Scheduled
		later.Share = 1
		s.Scheduled = &later
	}
	s.Arrival = s.Arrival.withDefaults(float64(s.Rate))
	return s
}

// bodies returns the target whose format the bodies have: the field As of a null step, and the
// target of any other step.
func (s *Step) bodies() string {
	if s.Target == Null {
		return s.As
	}
	return s.Target
}

// closed reports whether the step is a closed loop: each worker sends its next request as soon as
// it has an answer.
func (s *Step) closed() bool { return s.Arrival.Shape == "" }

// Source returns the scenario in the form that a Result stores.
func (s *Scenario) Source() (Source, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(s); err != nil {
		return Source{}, err
	}
	sum := sha256.Sum256(b.Bytes())
	return Source{Name: s.Name, About: s.About, Digest: hex.EncodeToString(sum[:]), YAML: b.String(), Seed: s.Seed}, nil
}
