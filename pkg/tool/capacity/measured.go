package capacity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Result is one figure in bench/results.json, with the fields that this package uses.
type Result struct {
	ID        string  `json:"id"`
	Work      string  `json:"work"`
	Value     float64 `json:"value"`
	Unit      string  `json:"unit"`
	Reference float64 `json:"reference"`
}

// ParseResults parses bench/results.json.
func ParseResults(b []byte) ([]Result, error) {
	var rs []Result
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&rs); err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: "bad_json", Field: "from", Msg: `is not a list of results of the command "make bench"`, Err: err}
	}
	return rs, nil
}

// Origin is a rate with its source.
type Origin struct {
	Key   string  `json:"key"`
	Value float64 `json:"value"`
	From  string  `json:"from"`
}

// measures says which figure of bench/results.json gives which parameter. The file has several
// lines for a figure. The fields work and unit select some of these lines, and the lowest value of
// the selected lines counts.
var measures = []measure{
	{key: "api_rate", id: "P3", work: "batches of", unit: "records/s", what: "batches over HTTP, fsynced"},
	{key: "api_fanout_rate", id: "P2", work: "fan-out over HTTP, fsynced", unit: "receivers/s", what: "fan-outs over HTTP, fsynced"},
	{key: "delivery_rate", id: "P6", work: "closed loop", unit: "receivers/s", what: "log to durable outcome, provider stubbed"},
	{key: "broker_rate", id: "P3", work: "batches of", unit: "records/s", reference: true, what: "the client straight into the embedded log, fsynced"},
	{key: "push_worker_rate", id: "P5", unit: "push", what: "push path to the provider's protocol"},
	{key: "db_node_rate", id: "P7", work: "timers parked", unit: "timers/s", reference: true, what: "rows into the embedded store alone, fsynced"},
	{key: "scheduler_node_rate", id: "P7", work: "timers parked", unit: "timers/s", what: "timers parked, fsynced"},
}

type measure struct {
	key, id    string
	work, unit string // prefixes of the line's work and unit; empty: every line matches
	reference  bool   // use the line's reference instead of its value
	what       string
}

// Measured returns a copy of an input with the measured rates, and the origins of these rates. The
// result missing lists the parameters for which the parameter results has no figure. The figures
// are from one process without replicas, so each figure is used for one node.
func Measured(input Input, results []Result) (updated Input, origins []Origin, missing []string, err error) {
	updated = input
	set := map[string]*Param{}
	ps := updated.Params()
	for i := range ps {
		set[ps[i].Key] = &ps[i]
	}
	for _, m := range measures {
		v, ok := m.findRate(results)
		if !ok {
			missing = append(missing, m.key)
			continue
		}
		*set[m.key].num = v
		origins = append(origins, Origin{m.key, v, m.id + ": " + m.what})
	}
	if len(origins) == 0 {
		return input, nil, nil, notify.Invalid("missing_setting", "from", fmt.Sprintf("has %d figures, but none that a plan uses (P2, P3, P5, P6, P7)", len(results)))
	}
	return updated, origins, missing, nil
}

func (m *measure) findRate(results []Result) (v float64, ok bool) {
	for _, r := range results {
		if r.ID != m.id || !strings.HasPrefix(r.Work, m.work) || !strings.HasPrefix(r.Unit, m.unit) {
			continue
		}
		x := r.Value
		if m.reference {
			x = r.Reference
		}
		if x > 0 && (!ok || x < v) {
			v, ok = x, true
		}
	}
	return v, ok
}
