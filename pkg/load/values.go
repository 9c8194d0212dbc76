package load

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Number is a count or a rate: 200, 1_000, 50k, 5M, 2.5M/s.
type Number float64

// ParseNumber reads what Number's comment shows.
func ParseNumber(s string) (Number, error) {
	text := strings.ReplaceAll(strings.TrimSuffix(strings.TrimSpace(s), "/s"), "_", "")
	factor := 1.0
	if n := len(text); n > 0 {
		switch text[n-1] {
		case 'k', 'K':
			factor = 1e3
		case 'm', 'M':
			factor = 1e6
		case 'g', 'G':
			factor = 1e9
		}
		if factor > 1 {
			text = text[:n-1]
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if v *= factor; err != nil || math.IsNaN(v) || v < 0 || v > 1e12 {
		return 0, fmt.Errorf("%q is not a number such as 200, 50k or 5M", s)
	}
	return Number(v), nil
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (n *Number) UnmarshalYAML(node *yaml.Node) (err error) {
	*n, err = ParseNumber(node.Value)
	return err
}

// MarshalYAML implements yaml.Marshaler.
func (n Number) MarshalYAML() (any, error) {
	if n == Number(int64(n)) {
		return int64(n), nil
	}
	return float64(n), nil
}

// Duration is a time.Duration that is written with its unit: 500ms, 10s, 2m.
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler. A number without a unit is an error.
func (d *Duration) UnmarshalYAML(node *yaml.Node) error {
	v, err := time.ParseDuration(node.Value)
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a length of time such as 500ms, 10s or 2m", node.Value)
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (d Duration) MarshalYAML() (any, error) { return time.Duration(d).String(), nil }

func (d Duration) of() time.Duration { return time.Duration(d) }

// UnmarshalYAML takes a word for the shape.
func (a *Arrival) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		a.Shape = node.Value
		return nil
	}
	type plain Arrival
	return node.Decode((*plain)(a))
}

// UnmarshalYAML takes a number for the count.
func (u *Users) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return u.Count.UnmarshalYAML(node)
	}
	type plain Users
	return node.Decode((*plain)(u))
}

// UnmarshalYAML takes a number for the bytes.
func (p *Payload) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		var n Number
		if err := n.UnmarshalYAML(node); err != nil {
			return err
		}
		p.Bytes = int(n)
		return nil
	}
	type plain Payload
	return node.Decode((*plain)(p))
}

// Threshold is one condition and what missing it does.
type Threshold struct {
	Expr  string   `yaml:"expr" doc:"e.g. lost == 0, response{step=otp}[10s].p99 < 50ms"`
	Abort bool     `yaml:"abort,omitempty" doc:"end the run when it is missed"`
	After Duration `yaml:"after,omitempty" doc:"not judged before this much of the run"`
}

// UnmarshalYAML takes a word for the condition.
func (t *Threshold) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		t.Expr = node.Value
		return nil
	}
	type plain Threshold
	return node.Decode((*plain)(t))
}
