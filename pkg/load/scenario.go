package load

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/pkg/notify"
)

// The targets.
const (
	Null   = "null"        // makes the bodies and sends nothing: calibration
	Single = "http-single" // one notification a request
	Batch  = "http-batch"  // different notifications in a request
	Fanout = "http-fanout" // one content, many receivers
)

// Scenario is one run. Unknown keys are errors.
type Scenario struct {
	Name     string        `yaml:"name"`
	About    string        `yaml:"about"`
	Target   string        `yaml:"target"`   // null, http-single, http-batch, http-fanout
	Rate     float64       `yaml:"rate"`     // receivers per second; 0: as fast as Workers go (closed loop)
	Duration time.Duration `yaml:"duration"` // of sending
	Count    int64         `yaml:"count"`    // receivers; 0: until Duration
	Size     int           `yaml:"size"`     // receivers a request (batch, fan-out); default 1, 500, 50,000
	Workers  int           `yaml:"workers"`  // requests at a time; default 64 singles, 16 batches, 8 fan-outs
	Seed     uint64        `yaml:"seed"`
	Channel  string        `yaml:"channel"`   // default push
	Category string        `yaml:"category"`  // default marketing for fan-outs, else transactional
	Users    uint64        `yaml:"users"`     // distinct users; default 5,000,000
	Body     string        `yaml:"body"`      // text; default a short one
	Address  bool          `yaml:"addresses"` // carry an address a receiver; default: the server looks it up
	Drain    time.Duration `yaml:"drain"`     // longest wait for delivery after sending; default 2 min; 0 in a null run
	Ordered  bool          `yaml:"ordered"`   // singles carry usr and seq, so that the ledger can check their order
}

// ReadScenario reads a YAML file.
func ReadScenario(path string) (Scenario, error) {
	f, err := os.Open(path)
	if err != nil {
		return Scenario{}, err
	}
	defer f.Close()
	var s Scenario
	dec := yaml.NewDecoder(f)
	dec.KnownFields(true)
	if err := dec.Decode(&s); err != nil && !errors.Is(err, io.EOF) {
		return s, notify.Invalid("bad_scenario", path, err.Error())
	}
	s = s.WithDefaults()
	return s, s.Validate()
}

// WithDefaults fills what is not set.
func (s Scenario) WithDefaults() Scenario {
	def := func(p *int, single, batch, fanout int) {
		if *p == 0 {
			*p = map[string]int{Single: single, Batch: batch}[s.Target]
			if *p == 0 {
				*p = fanout
			}
		}
	}
	if s.Target == "" {
		s.Target = Single
	}
	def(&s.Size, 1, 500, 50_000)
	def(&s.Workers, 64, 16, 8)
	if s.Channel == "" {
		s.Channel = notify.Push.String()
	}
	if s.Category == "" {
		s.Category = notify.Transactional.String()
		if s.Target == Fanout {
			s.Category = notify.Marketing.String()
		}
		if s.Channel == notify.SMS.String() {
			s.Category = notify.Alert.String()
		}
	}
	if s.Users == 0 {
		s.Users = 5_000_000
	}
	if s.Body == "" {
		s.Body = "Your order is on its way."
	}
	if s.Drain == 0 && s.Target != Null {
		s.Drain = 2 * time.Minute
	}
	return s
}

// Validate reports the first thing that is wrong.
func (s Scenario) Validate() error {
	bad := func(field, format string, args ...any) error {
		return notify.Invalid("bad_scenario", field, fmt.Sprintf(format, args...))
	}
	switch s.Target {
	case Null, Single, Batch, Fanout:
	default:
		return bad("target", "%q is not null, http-single, http-batch or http-fanout", s.Target)
	}
	if _, ok := notify.ParseChannel(s.Channel); !ok {
		return bad("channel", "no channel is called %q", s.Channel)
	}
	if _, ok := notify.ParseCategory(s.Category); !ok {
		return bad("category", "no category is called %q", s.Category)
	}
	switch {
	case s.Rate < 0:
		return bad("rate", "must not be negative")
	case s.Duration <= 0 && s.Count <= 0:
		return bad("duration", "a run needs a duration or a count")
	case s.Target == Single && s.Size != 1:
		return bad("size", "a single request has one receiver")
	case s.Target == Batch && s.Size > 1000:
		return bad("size", "a batch has at most 1,000 items")
	case s.Size < 1 || s.Workers < 1:
		return bad("size", "size and workers must be at least 1")
	case s.Ordered && (s.Target != Single || s.Users%uint64(s.Workers) != 0):
		return bad("ordered", "is for http-single, with a number of users that workers divides")
	case uint64(s.Size) > s.Users:
		return bad("users", "a fan-out of %d needs as many users", s.Size)
	}
	return nil
}
