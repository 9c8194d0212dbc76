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

// Protocol is the version of the protocol between agents and controllers. Both sides refuse
// another version.
const Protocol = 1

const (
	beat    = time.Second     // the longest pause between two messages of either side
	silence = 3 * time.Second // after it without a message, the other side counts as gone

	bodyTime = 10 * time.Second // the longest that a request's body may take to arrive
)

const (
	agentPath = "/v1/agent"
	runsPath  = "/v1/runs"
)

// Limits in bytes: of a request, which has a scenario, and of an event, which has the frame of a
// second with about 30 bytes for each acknowledged message.
const (
	maxRequest = 8 << 20
	maxEvent   = 256 << 20
)

// About describes an agent.
type About struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`
	Host     string `json:"host"`
	Now      int64  `json:"now_ns"` // the agent's clock, since 1970
}

// Start is the request that starts a run.
type Start struct {
	Protocol  int          `json:"protocol"`
	Scenario  string       `json:"scenario"` // YAML
	Segment   load.Segment `json:"segment"`
	Aim       Aim          `json:"aim"`
	OrderBase uint64       `json:"order_base"` // see load.Config
	Promises  bool         `json:"promises"`   // report each acknowledged message: the controller has a ledger
	Steerable bool         `json:"steerable"`  // Orders may change the rate
}

// Aim says where and how the agents send.
type Aim struct {
	Server        string        `json:"server,omitempty"` // URL; empty: the scenario has null steps only
	Token         string        `json:"token,omitempty"`
	Grant         string        `json:"grant,omitempty"` // token of a load grant
	Callback      string        `json:"callback,omitempty"`
	Kafka         []string      `json:"kafka,omitempty"`
	Timeout       time.Duration `json:"timeout_ns,omitempty"` // of one request
	NoCalibration bool          `json:"no_calibration,omitempty"`
}

// Event is one line of the answer to a Start. An empty one says that the agent is alive.
type Event struct {
	Run    string       `json:"run,omitempty"`   // id of the run, for Orders; in the first event
	Ready  *int         `json:"ready,omitempty"` // the agent waits for the Orders that begin this phase
	Frame  *load.Frame  `json:"frame,omitempty"`
	Done   bool         `json:"done,omitempty"` // the last event: the agent has sent everything, or was told to stop
	Failed *api.Problem `json:"failed,omitempty"`
}

// Orders is the complete state that the controller wants. The controller sends it every second,
// which also shows that the controller is alive.
type Orders struct {
	Phase int              `json:"phase"` // the last phase whose beginning is known; below 0: none
	At    int64            `json:"at_ns"` // when it begins in the agent's clock, since 1970
	Steer *load.SteerState `json:"steer,omitempty"`
	Token string           `json:"token,omitempty"` // replaces the earlier one
	Stop  bool             `json:"stop,omitempty"`
}

// problemOf encodes an agent's error for the controller, with its cause.
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
