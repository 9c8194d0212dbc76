package app

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
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

	"github.com/notifyd/notifyd/pkg/notify"
)

// EnvPrefix begins every environment variable that sets a value:
// NOTIFYD__API__LISTEN. The double underscore keeps clear of the variables a
// Kubernetes service of the name notifyd injects.
const EnvPrefix = "NOTIFYD__"

// Loaded is a configuration and where each value came from.
type Loaded struct {
	Config Config
	Origin map[string]string // key -> "default", a file, an environment variable or a flag
}

// Load builds the configuration: defaults < files < environment < flags. It
// reports every problem it finds, not only the first.
func Load(files, environ []string, flags map[string]any) (Loaded, error) {
	defaults := flatten(Default())
	k := koanf.New(".")
	origin := map[string]string{}
	var problems []error
	put := func(values map[string]any, from func(key string) string) {
		for key := range values {
			if !known(defaults, key) {
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

	cfg := Default()
	if err := k.UnmarshalWithConf("", &cfg, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			mapstructure.StringToTimeDurationHookFunc(), mapstructure.StringToSliceHookFunc(",")),
		Result: &cfg, WeaklyTypedInput: true, TagName: "koanf",
	}}); err != nil {
		problems = append(problems, err)
	}
	problems = append(problems, cfg.validate()...)
	return Loaded{cfg, origin}, errors.Join(problems...)
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

// known reports whether key names a value, or lies inside one that is a map or
// a list.
func known(defaults map[string]field, key string) bool {
	for {
		if f, ok := defaults[key]; ok {
			return f.value.Kind() == reflect.Map || f.value.Kind() == reflect.Slice || f.key == key
		}
		i := strings.LastIndexByte(key, '.')
		if i < 0 {
			return false
		}
		key = key[:i]
		if f, ok := defaults[key]; ok {
			return f.value.Kind() == reflect.Map
		}
	}
}

func suggest(defaults map[string]field, key string) string {
	best, dist := "", 4
	for k := range defaults {
		if d := distance(k, key); d < dist || (d == dist && k < best) {
			best, dist = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is the Levenshtein distance of two short strings.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		prev := row[0]
		row[0] = i + 1
		for j := range b {
			cost := prev
			if a[i] != b[j] {
				cost++
			}
			prev = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// field is one value of the configuration.
type field struct {
	key, doc string
	value    reflect.Value
}

func flatten(c Config) map[string]field {
	out := map[string]field{}
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			t := v.Type().Field(i)
			if t.Tag.Get("koanf") == "-" {
				continue
			}
			key := prefix + t.Tag.Get("koanf")
			if v.Field(i).Kind() == reflect.Struct {
				walk(key+".", v.Field(i))
				continue
			}
			out[key] = field{key, t.Tag.Get("doc"), v.Field(i)}
		}
	}
	walk("", reflect.ValueOf(c))
	return out
}

// Print writes the configuration, one "key: value" a line, with where each
// value came from.
func (l Loaded) Print() string {
	var b strings.Builder
	fs := flatten(l.Config)
	for _, key := range slices.Sorted(maps.Keys(fs)) {
		origin := l.Origin[key]
		for k, o := range l.Origin { // a value set inside a map
			if strings.HasPrefix(k, key+".") && o != "default" {
				origin = o
			}
		}
		fmt.Fprintf(&b, "%-36s %-40s # %s\n", key+":", show(fs[key].value), origin)
	}
	return b.String()
}

func show(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.String()
	case string:
		return strconv.Quote(x)
	case []TwilioAccount:
		ids := make([]string, len(x))
		for i := range x {
			ids[i] = x[i].SID
		}
		return fmt.Sprintf("%v (tokens redacted)", ids)
	}
	return fmt.Sprint(v.Interface())
}

// Example writes a complete configuration file with its documentation.
func Example() string {
	var doc yamlv3.Node
	build(reflect.ValueOf(Default()), &doc)
	var b bytes.Buffer
	enc := yamlv3.NewEncoder(&b)
	enc.SetIndent(2)
	_ = enc.Encode(&doc) // of scalars only: cannot fail
	return "# notifyd configuration with every key and its default.\n" + b.String()
}

func build(v reflect.Value, n *yamlv3.Node) {
	n.Kind = yamlv3.MappingNode
	for i := range v.NumField() {
		t := v.Type().Field(i)
		if t.Tag.Get("koanf") == "-" {
			continue
		}
		key := &yamlv3.Node{Kind: yamlv3.ScalarNode, Value: t.Tag.Get("koanf"), HeadComment: t.Tag.Get("doc")}
		val := &yamlv3.Node{}
		f := v.Field(i)
		if f.Kind() == reflect.Struct {
			build(f, val)
		} else if d, ok := f.Interface().(time.Duration); ok {
			_ = val.Encode(d.String())
		} else {
			_ = val.Encode(f.Interface())
		}
		n.Content = append(n.Content, key, val)
	}
}

func (c *Config) validate() (problems []error) {
	bad := func(key, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	for key, addr := range map[string]string{"api.listen": c.API.Listen, "api.admin": c.API.Admin, "log.listen": c.Log.Listen} {
		if addr == "" && key == "api.admin" {
			continue
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			bad(key, "%q is not host:port", addr)
		}
	}
	for name, n := range c.Log.Partitions {
		if _, ok := notify.ParseChannel(name); !ok {
			bad("log.partitions", "no channel is called %q", name)
		}
		if n < 1 || n > 1000 {
			bad("log.partitions."+name, "%d is not between 1 and 1000", n)
		}
	}
	for _, ch := range notify.Channels {
		if c.Log.Partitions[ch.String()] == 0 {
			bad("log.partitions", "no partition count for %s", ch)
		}
	}
	for ch, cats := range c.Intake.Refuse {
		if _, ok := notify.ParseChannel(ch); !ok {
			bad("intake.refuse", "no channel is called %q", ch)
		}
		for _, cat := range cats {
			if _, ok := notify.ParseCategory(cat); !ok {
				bad("intake.refuse."+ch, "no category is called %q", cat)
			}
		}
	}
	for _, cat := range c.Intake.SMS {
		if _, ok := notify.ParseCategory(cat); !ok {
			bad("intake.sms_categories", "no category is called %q", cat)
		}
	}
	least := func(key string, v, min int64) {
		if v < min {
			bad(key, "%d is below %d", v, min)
		}
	}
	least("log.cap_mib", int64(c.Log.CapMiB), 64)
	least("log.min_free_mib", int64(c.Log.MinFreeMiB), 1)
	least("api.burst", int64(c.API.Burst), 1)
	least("api.body_mib", int64(c.API.BodyMiB), 128) // a fan-out of 64 MiB of each of two callers
	least("intake.spill_mib", int64(c.Intake.SpillMiB), 1)
	least("timers.catch_up_rate", int64(c.Timers.CatchUpRate), 1)
	if c.Timers.Shards < 1 || c.Timers.Shards > 4096 {
		bad("timers.shards", "%d is not between 1 and 4096", c.Timers.Shards)
	}
	if c.Timers.Jitter < 0 || c.Timers.Jitter > time.Hour {
		bad("timers.jitter", "%s is not between 0 and 1h", c.Timers.Jitter)
	}
	least("triggers.caller_in_flight", int64(c.Triggers.CallerInFlight), 1)
	least("triggers.in_flight", int64(c.Triggers.InFlight), 1)
	least("triggers.max_pending", int64(c.Triggers.MaxPending), 1)
	if c.Triggers.Timeout > 25*time.Second {
		bad("triggers.timeout", "%s is above 25s: a call ends within its claim", c.Triggers.Timeout)
	}
	if _, err := c.egress(); err != nil {
		problems = append(problems, err)
	}
	least("workers.max_retries", int64(c.Workers.MaxRetries), 0)
	least("providers.apns.connections", int64(c.Providers.APNs.Connections), 1)
	least("providers.twilio.parallel", int64(c.Providers.Twilio.Parallel), 1)
	for key, rate := range map[string]float64{
		"api.rate": c.API.Rate, "providers.twilio.rate": c.Providers.Twilio.Rate, "providers.sendgrid.rate": c.Providers.SendGrid.Rate,
	} {
		if !(rate > 0) {
			bad(key, "%v is not above 0", rate)
		}
	}
	for key, d := range map[string]time.Duration{
		"history.retention": c.History.Retention, "intake.idempotency": c.Intake.Idempotency, "workers.batch_age": c.Workers.BatchAge,
		"workers.drain": c.Workers.Drain, "workers.call_limit": c.Workers.CallLimit,
		"timers.max_delay": c.Timers.MaxDelay, "triggers.timeout": c.Triggers.Timeout,
		"providers.config_open_for": c.Providers.ConfigOpenFor,
	} {
		if d <= 0 {
			bad(key, "%s is not above 0", d)
		}
	}
	if c.Log.Linger < 0 {
		bad("log.linger", "%s is below 0", c.Log.Linger)
	}
	if c.API.Plaintext != "loopback" && c.API.Plaintext != "anywhere" {
		bad("api.plaintext", "%q is not loopback or anywhere", c.API.Plaintext)
	}
	if u, err := url.Parse(c.API.PublicURL); c.API.PublicURL != "" && (err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https")) {
		bad("api.public_url", "%q is not an http or https URL", c.API.PublicURL)
	}
	keys := 0
	for _, from := range []string{c.Auth.JWKSURL, c.Auth.JWKSFile, c.Auth.KeyFile, c.Auth.HS256} {
		if from != "" {
			keys++
		}
	}
	if keys > 1 {
		bad("auth", "only one of jwks_url, jwks_file, key_file and hs256_file may be set, not %d", keys)
	}
	for _, name := range c.Workers.Strict {
		if _, ok := notify.ParseLane(name); !ok {
			bad("workers.strict", "no lane is called %q", name)
		}
	}
	if c.Workers.Bulk <= 0 || c.Workers.Bulk > 1 {
		bad("workers.bulk_share", "%v is not above 0 and at most 1", c.Workers.Bulk)
	}
	for name, l := range map[string]Lane{"push": c.Workers.Push, "sms": c.Workers.SMS, "email": c.Workers.Email} {
		if l.InFlight < 1 || l.Window < 1 || l.Ahead < 1 {
			bad("workers."+name, "in_flight, window and ahead must be at least 1")
		}
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Logging.Level) {
		bad("logging.level", "%q is not debug, info, warn or error", c.Logging.Level)
	}
	if c.Logging.Format != "json" && c.Logging.Format != "text" {
		bad("logging.format", "%q is not json or text", c.Logging.Format)
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return problems
}

// DataFolder is where a process without data_dir keeps its data.
func DataFolder(getenv func(string) string, name string) string {
	base := getenv("XDG_DATA_HOME")
	if base == "" {
		base = filepath.Join(getenv("HOME"), ".local", "share")
	}
	return filepath.Join(base, "notifyd", name)
}
