package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Protocol is the version of what agents and controllers say to each other. Others are
// refused.
const Protocol = 1

const (
	beat    = time.Second     // either side says something at least so often
	silence = 3 * time.Second // for which the other one may say nothing

	bodyTime = 10 * time.Second // the longest that a request's body may take to arrive
)

const (
	agentPath = "/v1/agent"
	runsPath  = "/v1/runs"
)

// Bounds of what is read: a scenario, and a second's frame with what was acknowledged in
// it, about 30 bytes a message.
const (
	maxRequest = 8 << 20
	maxEvent   = 256 << 20
)

// About is what an agent says of itself.
type About struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`
	Host     string `json:"host"`
	Now      int64  `json:"now_ns"` // by its clock, since 1970
}

// Start asks an agent for a run.
type Start struct {
	Protocol  int          `json:"protocol"`
	Scenario  string       `json:"scenario"` // YAML
	Segment   load.Segment `json:"segment"`
	Aim       Aim          `json:"aim"`
	Promises  bool         `json:"promises"`  // report what was acknowledged: there is a ledger
	Steerable bool         `json:"steerable"` // Orders may change the rate
}

// Aim is what the agents send to, and how.
type Aim struct {
	Server        string        `json:"server,omitempty"` // URL; empty: only null steps
	Token         string        `json:"token,omitempty"`
	Grant         string        `json:"grant,omitempty"` // allows load beyond loopback
	Callback      string        `json:"callback,omitempty"`
	Kafka         []string      `json:"kafka,omitempty"`
	Timeout       time.Duration `json:"timeout_ns,omitempty"` // of a request
	NoCalibration bool          `json:"no_calibration,omitempty"`
}

// Event is one line of the answer to a Start; one without anything says that the agent is
// there.
type Event struct {
	Run    string       `json:"run,omitempty"`   // names the run for Orders: the first event
	Ready  *int         `json:"ready,omitempty"` // waits for the Orders that begin this phase
	Frame  *load.Frame  `json:"frame,omitempty"`
	Done   bool         `json:"done,omitempty"` // the last event: all was sent, or it was stopped
	Failed *api.Problem `json:"failed,omitempty"`
}

// Orders are what the controller wants, all of it each time. They are sent again every
// second: then they say that the controller is there.
type Orders struct {
	Phase int              `json:"phase"` // the last phase that has a beginning; below 0: none
	At    int64            `json:"at_ns"` // its beginning by the agent's clock, since 1970
	Steer *load.SteerState `json:"steer,omitempty"`
	Token string           `json:"token,omitempty"` // instead of the one before
	Stop  bool             `json:"stop,omitempty"`
}

// problemOf is an error of an agent on its way to the controller, which may see the cause.
func problemOf(err error) *api.Problem {
	e, ok := errors.AsType[*notify.Error](err)
	if !ok {
		e = &notify.Error{Kind: notify.KindInternal, Code: "agent", Msg: err.Error()}
	}
	p := &api.Problem{Status: api.StatusOf(e.Kind, e.Code), Code: cmp.Or(e.Code, "agent"), Field: e.Field, Detail: e.Msg}
	p.Title = http.StatusText(p.Status)
	if e.Err != nil {
		p.Detail += ": " + e.Err.Error()
	}
	return p
}

// refuse answers a request with an error.
func refuse(w http.ResponseWriter, err error) {
	p := problemOf(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(Event{Failed: p}) // fails if the controller has gone
}
