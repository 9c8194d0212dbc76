package app

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/setting"
	"github.com/notifyd/notifyd/pkg/term"
)

// EnvPrefix is the beginning of every environment variable that sets a value, such as
// NOTIFYD__API__LISTEN. For a service called notifyd, Kubernetes sets environment variables that begin
// with NOTIFYD_. The double underscore distinguishes our variables from the variables of Kubernetes.
const EnvPrefix = "NOTIFYD__"

// Loaded is a configuration together with the origin of each value.
type Loaded struct {
	Config Config
	Origin map[string]string // key -> "default", the name of a file or of an environment variable, or "flag"
}

// Load builds the configuration. Values in configuration files override the defaults, environment
// variables override files, and flags override everything. Load reports every problem that it
// finds, not only the first.
func Load(files, environ []string, flags map[string]any) (Loaded, error) {
	defaults := flatten(Default())
	k := koanf.New(".")
	origin := map[string]string{}
	var problems []error
	put := func(values map[string]any, from func(key string) string) {
		for key := range values {
			if !isKnownKey(defaults, key) {
				problems = append(problems, fmt.Errorf("%s: unknown key %q%s", from(key), key, suggest(defaults, key)))
				continue
			}
			origin[key] = from(key)
		}
		if err := k.Load(confmap.Provider(values, "."), nil); err != nil {
			problems = append(problems, err)
		}
	}
	for key := range defaults {
		origin[key] = "default"
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		one := koanf.New(".")
		if err := one.Load(rawbytes.Provider(b), yaml.Parser()); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", file, err))
			continue
		}
		put(one.All(), func(string) string { return file })
	}
	env, names := fromEnv(environ)
	put(env, func(key string) string { return names[key] })
	put(flags, func(string) string { return "flag" })

	cfg := DefaultFor(k.String("engines"))
	err := k.UnmarshalWithConf("", &cfg, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		DecodeHook: mapstructure.ComposeDecodeHookFunc(refuseUnitless,
			mapstructure.StringToTimeDurationHookFunc(), mapstructure.StringToSliceHookFunc(",")),
		Result: &cfg, WeaklyTypedInput: true, TagName: "koanf",
	}})
	refused := append(undecodable(err, defaults, k.Get), cfg.validate()...)
	refused = append(refused, exposedSecrets(&Loaded{cfg, origin})...)
	slices.SortStableFunc(refused, func(a, b problem) int { return strings.Compare(a.key, b.key) })
	for _, p := range refused {
		p.origin = originOf(origin, p.key)
		problems = append(problems, p)
	}
	return Loaded{cfg, origin}, errors.Join(problems...)
}

// refuseUnitless refuses a duration without a unit, because 5 would mean 5 ns.
func refuseUnitless(_, to reflect.Type, data any) (any, error) {
	if to != reflect.TypeFor[time.Duration]() {
		return data, nil
	}
	if v := reflect.ValueOf(data); (v.CanInt() || v.CanUint() || v.CanFloat()) && !v.IsZero() {
		if _, ok := data.(time.Duration); !ok {
			return nil, errors.New("the duration has no unit, such as s or ms")
		}
	}
	return data, nil
}

func fromEnv(environ []string) (values map[string]any, names map[string]string) {
	values, names = map[string]any{}, map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		rest, ok := strings.CutPrefix(name, EnvPrefix)
		if !ok {
			continue
		}
		key := strings.ToLower(strings.ReplaceAll(rest, "__", "."))
		values[key], names[key] = value, name
	}
	return values, names
}

// isKnownKey reports whether key is the key of a value, or a key inside a value that is a map.
func isKnownKey(defaults map[string]setting.Field, key string) bool {
	for {
		if f, ok := defaults[key]; ok {
			return f.Value.Kind() == reflect.Map || f.Value.Kind() == reflect.Slice || f.Key == key
		}
		i := strings.LastIndexByte(key, '.')
		if i < 0 {
			return false
		}
		key = key[:i]
		if f, ok := defaults[key]; ok {
			return f.Value.Kind() == reflect.Map
		}
	}
}

func suggest(defaults map[string]setting.Field, key string) string {
	if best := term.Nearest(key, 3, slices.Collect(maps.Keys(defaults))); best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	// Suggest keys with this name in other sections, or keys in a section with this name.
	name := key[strings.LastIndexByte(key, '.')+1:]
	var same []string
	for k := range defaults {
		if slices.Contains(strings.Split(k, "."), name) {
			same = append(same, k)
		}
	}
	if len(same) == 0 {
		return ""
	}
	slices.Sort(same)
	more := ""
	if len(same) > 3 {
		same, more = same[:3], " and others"
	}
	return fmt.Sprintf("; there is %s%s", strings.Join(same, ", "), more)
}

// flatten returns the fields of c that a configuration file can set, by key.
func flatten(c Config) map[string]setting.Field {
	out := map[string]setting.Field{}
	for _, f := range setting.Fields(reflect.ValueOf(c)) {
		if _, ok := f.Tag.Lookup("koanf"); ok {
			out[f.Key] = f
		}
	}
	return out
}

// documentation returns the comment of a value for the example file.
func documentation(f setting.Field) string {
	text := f.Tag.Get("doc")
	if allowed := f.Range(); allowed != "" {
		text += "; " + allowed
	}
	return text
}

// Print writes the configuration. Each line is "key: value", followed by the origin of the value.
func (l Loaded) Print() string {
	var b strings.Builder
	fs := flatten(l.Config)
	for _, key := range slices.Sorted(maps.Keys(fs)) {
		origin := l.Origin[key]
		for k, o := range l.Origin { // a key inside a map has its own origin
			if strings.HasPrefix(k, key+".") && o != "default" {
				origin = o
			}
		}
		fmt.Fprintf(&b, "%-36s %-40s # %s\n", key+":", formatValue(fs[key]), origin)
	}
	return b.String()
}

func formatValue(f setting.Field) string {
	v := f.Value
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.String()
	case string:
		if f.Tag.Get("secret") != "" && x != "" {
			return "(set, not shown)"
		}
		return strconv.Quote(x)
	case []provider.TwilioAccount:
		ids := make([]string, len(x))
		for i := range x {
			ids[i] = x[i].SID
		}
		return fmt.Sprintf("%v (tokens redacted)", ids)
	}
	return fmt.Sprint(v.Interface())
}

// Example returns a complete configuration file in which every key has its documentation.
func Example() string {
	var doc yamlv3.Node
	buildExample(reflect.ValueOf(Default()), &doc)
	var b bytes.Buffer
	enc := yamlv3.NewEncoder(&b)
	enc.SetIndent(2)
	_ = enc.Encode(&doc) // cannot fail: doc contains only scalars
	return "# notifyd configuration with every key and its default.\n" + b.String()
}

func buildExample(v reflect.Value, n *yamlv3.Node) {
	n.Kind = yamlv3.MappingNode
	for i := range v.NumField() {
		t := v.Type().Field(i)
		if key := t.Tag.Get("koanf"); key == "" || key == "-" {
			continue
		}
		key := &yamlv3.Node{Kind: yamlv3.ScalarNode, Value: t.Tag.Get("koanf"), HeadComment: documentation(setting.Field{Tag: t.Tag})}
		val := &yamlv3.Node{}
		f := v.Field(i)
		if f.Kind() == reflect.Struct {
			buildExample(f, val)
		} else if d, ok := f.Interface().(time.Duration); ok {
			_ = val.Encode(d.String())
		} else {
			_ = val.Encode(f.Interface())
		}
		n.Content = append(n.Content, key, val)
	}
}
