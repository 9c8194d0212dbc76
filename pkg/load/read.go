package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

const codeScenario = "bad_scenario"

// ReadScenario reads a scenario from a YAML file, fills in the defaults and validates the scenario.
// Paths in the scenario are relative to the folder of the file.
func ReadScenario(path string) (Scenario, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Scenario{}, err
	}
	s, err := ParseScenario(b)
	if err != nil {
		if e, ok := errors.AsType[*notify.Error](err); ok {
			e.Msg = path + ": " + e.Msg
		}
		return s, err
	}
	if s.Name == "" {
		s.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	for _, st := range s.steps() {
		if f := &st.Arrival.File; *f != "" && !filepath.IsAbs(*f) {
			*f = filepath.Join(filepath.Dir(path), *f)
		}
	}
	return s, nil
}

// ParseScenario reads a scenario from YAML, fills in the defaults and validates the scenario. It
// ignores top-level keys that begin with x-, because they hold anchors.
func ParseScenario(b []byte) (Scenario, error) {
	var s Scenario
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the scenario is empty")
		}
		return s, notify.Invalid(codeScenario, "", err.Error())
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return s, notify.Invalid(codeScenario, "", "the scenario has more than one YAML document; it must be one document")
	}
	root := doc.Content[0]
	if root.Kind == yaml.MappingNode {
		for i := len(root.Content) - 2; i >= 0; i -= 2 {
			if strings.HasPrefix(root.Content[i].Value, "x-") {
				root.Content = slices.Delete(root.Content, i, i+2)
			}
		}
	}
	if err := checkSize(root); err != nil {
		return s, err
	}
	if err := checkKeys(root, reflect.TypeFor[Scenario](), ""); err != nil {
		return s, err
	}
	if err := root.Decode(&s); err != nil {
		return s, notify.Invalid(codeScenario, "", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(s.Phases) > 0 && (len(s.Steps) > 0 || s.Duration > 0) {
		return s, notify.Invalid(codeScenario, "phases", "a scenario with phases must not also have steps or duration at the top level; put them into a phase")
	}
	s = s.WithDefaults()
	err := s.Validate()
	return s, err
}

// checkSize returns an error for a document that would take too long to read: an alias contains
// itself, or aliases of aliases multiply the contents.
func checkSize(root *yaml.Node) error {
	// most is the highest number of nodes. A node that several aliases contain is counted several
	// times. deepest is the highest number of nested levels; a scenario needs only a few levels.
	const most, deepest = 1 << 18, 32
	left, inside := most, []*yaml.Node{}
	var walk func(n *yaml.Node) error
	walk = func(n *yaml.Node) error {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		if slices.Contains(inside, n) {
			return notify.Invalid(codeScenario, "", fmt.Sprintf("line %d: a YAML alias is part of the value that it stands for", n.Line))
		}
		if left--; left < 0 || len(inside) > deepest {
			return notify.Invalid(codeScenario, "", fmt.Sprintf("line %d: the scenario is too large; a scenario may have at most %d values and %d nested levels", n.Line, most, deepest))
		}
		inside = append(inside, n)
		for _, child := range n.Content {
			if err := walk(child); err != nil {
				return err
			}
		}
		inside = inside[:len(inside)-1]
		return nil
	}
	return walk(root)
}

// scalarRules says for each Go kind which values it accepts, for error messages.
var scalarRules = map[reflect.Kind]string{
	reflect.Bool: "must be true or false", reflect.Int: "must be a whole number", reflect.Uint64: "must be a whole number of 0 or more",
	reflect.Float64: "must be a number", reflect.Struct: "must have keys and values", reflect.Map: "must have keys and values",
}

// checkKeys returns an error for an unknown key, and for a value that does not fit the type t. The
// error contains the line number.
func checkKeys(n *yaml.Node, t reflect.Type, path string) error {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	bad := func(format string, args ...any) error {
		return notify.Invalid(codeScenario, path, fmt.Sprintf("line %d: ", n.Line)+fmt.Sprintf(format, args...))
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.Kind == yaml.ScalarNode {
		if t.Kind() == reflect.Slice || n.Tag == "!!null" {
			if n.Tag == "!!null" {
				return nil
			}
			return bad("must be a list")
		}
		if err := n.Decode(reflect.New(t).Interface()); err != nil {
			if _, ok := errors.AsType[*yaml.TypeError](err); ok && scalarRules[t.Kind()] != "" {
				return bad("%s, not %q", scalarRules[t.Kind()], n.Value)
			}
			return bad("%s", lastLine(err))
		}
		return nil
	}
	switch t.Kind() {
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return bad("must be a list")
		}
		for i, item := range n.Content {
			if err := checkKeys(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		if n.Kind != yaml.MappingNode {
			return bad("must have keys and values")
		}
		return knownKeys(n, t, path)
	case reflect.Map:
	default:
		return bad("must be a single value")
	}
	return nil
}

func knownKeys(n *yaml.Node, t reflect.Type, path string) error {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		fields[name] = t.Field(i).Type
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			for _, from := range merged(value) {
				if err := checkKeys(from, t, path); err != nil {
					return err
				}
			}
			continue
		}
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		ft, ok := fields[key.Value]
		if !ok {
			return notify.Invalid(codeScenario, at, fmt.Sprintf("line %d: unknown key %q%s", key.Line, key.Value, suggest(key.Value, fields)))
		}
		if seen[key.Value] {
			return notify.Invalid(codeScenario, at, fmt.Sprintf("line %d: the key %q occurs twice", key.Line, key.Value))
		}
		seen[key.Value] = true
		if ft.Kind() == reflect.String && value.Tag == "!!null" && value.Value != "" {
			value.Tag = "!!str" // in "target: null" null is a name, not an absent value
		}
		if err := checkKeys(value, ft, at); err != nil {
			return err
		}
	}
	return nil
}

// merged returns the mappings to which the value n of a "<<" key refers.
func merged(n *yaml.Node) []*yaml.Node {
	if n.Kind == yaml.SequenceNode {
		return n.Content
	}
	return []*yaml.Node{n}
}

var yamlLine = regexp.MustCompile(`^(yaml: )?(line \d+: )?`)

// lastLine returns the last line of an error of yaml.Node.Decode, without the line number. The caller
// adds the line number.
func lastLine(err error) string {
	s := strings.TrimSpace(err.Error())
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = strings.TrimSpace(s[i+1:])
	}
	return yamlLine.ReplaceAllString(s, "")
}

// suggest returns "; did you mean ...?" with the key of the map fields that is most similar to
// the given word. It returns "" if no key is similar.
func suggest[T any](word string, fields map[string]T) string {
	if best := term.Nearest(strings.ToLower(word), 1+len(word)/3, slices.Collect(maps.Keys(fields))); best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return ""
}

// Number is a count or a rate: 200, 1_000, 50k, 5M, 2.5M/s.
type Number float64

// ParseNumber reads a number in one of the forms that Number lists.
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

// Duration is a time.Duration that is written with a unit: 500ms, 10s, 2m.
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler. It returns an error for a number without a unit.
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

// decodeOr calls the function scalar if the node is a scalar. It decodes any other node into plain.
func decodeOr(node *yaml.Node, scalar func() error, plain any) error {
	if node.Kind == yaml.ScalarNode {
		return scalar()
	}
	return node.Decode(plain)
}

// UnmarshalYAML also accepts a single word, which sets the shape.
func (a *Arrival) UnmarshalYAML(node *yaml.Node) error {
	type plain Arrival
	return decodeOr(node, func() error { a.Shape = node.Value; return nil }, (*plain)(a))
}

// UnmarshalYAML also accepts a single number, which sets the count.
func (u *Users) UnmarshalYAML(node *yaml.Node) error {
	type plain Users
	return decodeOr(node, func() error { return u.Count.UnmarshalYAML(node) }, (*plain)(u))
}

// UnmarshalYAML also accepts a single number, which sets the bytes.
func (p *Payload) UnmarshalYAML(node *yaml.Node) error {
	type plain Payload
	return decodeOr(node, func() error {
		var n Number
		err := n.UnmarshalYAML(node)
		p.Bytes = int(n)
		return err
	}, (*plain)(p))
}

// Threshold is a condition of a scenario, and what happens if it is missed.
type Threshold struct {
	Expr  string   `yaml:"expr" doc:"condition that must hold, e.g. lost == 0 or response{step=otp}[10s].p99 < 50ms"`
	Abort bool     `yaml:"abort,omitempty" doc:"end the run as soon as the condition does not hold"`
	After Duration `yaml:"after,omitempty" doc:"during the run, do not check the condition before this time since the start"`
}

// UnmarshalYAML also accepts a single string, which sets the condition.
func (t *Threshold) UnmarshalYAML(node *yaml.Node) error {
	type plain Threshold
	return decodeOr(node, func() error { t.Expr = node.Value; return nil }, (*plain)(t))
}
