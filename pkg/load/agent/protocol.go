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

// Protocol is the version of the protocol between agents and controllers. Agents and controllers
// refuse any other version.
const Protocol = 1

const (
	beat    = time.Second     // each side sends a message at least this often
	silence = 3 * time.Second // a side that sends nothing for this time counts as gone

	bodyTime = 10 * time.Second // longest time in which the body of a request must arrive
)

const (
	agentPath = "/v1/agent"
	runsPath  = "/v1/runs"
)

// Limits in bytes. A request contains a scenario. An event contains the frame of one second, with
// about 30 bytes for each acknowledged message.
const (
	maxRequest = 8 << 20
	maxEvent   = 256 << 20
)

// About describes an agent.
type About struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`
	Host     string `json:"host"`
	Now      int64  `json:"now_ns"` // the agent's clock, in ns since 1970
}

// Start is the request that starts a run.
type Start struct {
	Protocol  int          `json:"protocol"`
	Scenario  string       `json:"scenario"` // YAML
	Segment   load.Segment `json:"segment"`
	Aim       Aim          `json:"aim"`
	OrderBase uint64       `json:"order_base"` // see load.Config
	// If Promises is true, the agent reports each acknowledged message, because the controller has
	// a ledger.
	Promises  bool `json:"promises"`
	Steerable bool `json:"steerable"` // true: Orders may change the rate
}

// Aim describes the target of the agents and how they send to it.
type Aim struct {
	Server        string        `json:"server,omitempty"` // URL; empty: the scenario has only null steps
	Token         string        `json:"token,omitempty"`
	Grant         string        `json:"grant,omitempty"` // token of a load grant
	Callback      string        `json:"callback,omitempty"`
	Kafka         []string      `json:"kafka,omitempty"`
	Timeout       time.Duration `json:"timeout_ns,omitempty"` // timeout of one request
	NoCalibration bool          `json:"no_calibration,omitempty"`
}

// Event is one line of the answer to a Start. An empty Event shows that the agent is alive.
type Event struct {
	Run string `json:"run,omitempty"` // id of the run, for the path of Orders; only in the first event
	// Ready is the number of a phase. The agent waits for the Orders that begin this phase.
	Ready *int        `json:"ready,omitempty"`
	Frame *load.Frame `json:"frame,omitempty"`
	// If Done is true, this is the last event: the agent has sent everything, or the controller has
	// stopped it.
	Done   bool         `json:"done,omitempty"`
	Failed *api.Problem `json:"failed,omitempty"`
}

// Orders is the complete state that the controller wants. The controller sends Orders every second,
// and so also shows that it is alive.
type Orders struct {
	Phase int              `json:"phase"` // the latest phase for which the controller has decided when it begins; below 0: no phase
	At    int64            `json:"at_ns"` // when this phase begins: ns since 1970, in the agent's clock
	Steer *load.SteerState `json:"steer,omitempty"`
	Token string           `json:"token,omitempty"` // replaces the earlier token
	Stop  bool             `json:"stop,omitempty"`
}

// problemOf converts an error of an agent, with its cause, to the form that the controller gets.
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
	_ = json.NewEncoder(w).Encode(Event{Failed: p}) // fails if the controller has closed the connection
}
