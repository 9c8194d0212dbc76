package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"

	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/setting"
	"github.com/notifyd/notifyd/pkg/trace"
)

// problem is a value that was refused. It holds the value's key, a text with the value and the rule,
// and the origin of the value.
type problem struct{ key, text, origin string }

func (p problem) Error() string {
	s := p.key + ": " + p.text
	if p.origin != "" {
		s += "; set by " + p.origin
	}
	return s
}

// originOf returns the origin of a value, or the origins of the values in a section. It ignores
// defaults. If all values are defaults, it returns "".
func originOf(origin map[string]string, key string) string {
	var from []string
	for k, o := range origin {
		if (k == key || strings.HasPrefix(k, key+".") || strings.HasPrefix(key, k+".")) && o != "default" && !slices.Contains(from, o) {
			from = append(from, o)
		}
	}
	slices.Sort(from)
	return strings.Join(from, ", ")
}

// undecodable returns a problem for each value that does not have the type of its key. The text shows
// only numbers, booleans and durations, because other values may be secret.
func undecodable(err error, fields map[string]setting.Field, get func(key string) any) (problems []problem) {
	switch e := err.(type) { //nolint:errorlint // the cases below handle wrapped errors
	case nil:
		return nil
	case *mapstructure.DecodeError:
		f, ok := fields[e.Name()]
		if !ok {
			return []problem{{key: e.Name(), text: e.Unwrap().Error()}}
		}
		var what string
		switch _, duration := f.Value.Interface().(time.Duration); {
		case duration:
			what = "a length of time such as 500ms, 10s or 2h"
		case f.Value.CanInt():
			what = "a whole number"
		case f.Value.CanFloat():
			what = "a number"
		case f.Value.Kind() == reflect.Bool:
			what = "true or false"
		default:
			return []problem{{key: e.Name(), text: e.Unwrap().Error()}}
		}
		return []problem{{key: e.Name(), text: fmt.Sprintf("%q is not %s", fmt.Sprint(get(e.Name())), what)}}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			problems = append(problems, undecodable(one, fields, get)...)
		}
		return problems
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return undecodable(inner, fields, get)
		}
	}
	return []problem{{key: "configuration", text: err.Error()}}
}

var queuePrefix = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,71}$`)

// topicPrefix is the form of a valid prefix. It allows 100 characters, so that even the longest
// name of a topic or group stays within Kafka's limit of 249 characters.
var topicPrefix = regexp.MustCompile(`^[a-zA-Z0-9._-]{0,100}$`)

// forms contains one check for each value of the tag "is" of a field. A check returns what is wrong
// with a text, or "" if the text is valid.
var forms = map[string]func(text string) string{
	"address":   notAddress,
	"loopback":  notLoopback,
	"host:port": notHostPort,
	"url": func(s string) string {
		u, err := url.Parse(s)
		return messageUnless(err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https"), "%q is not an http or https URL", s)
	},
	"collector": func(s string) string {
		if err := trace.CheckEndpoint(s); err != nil {
			return "the URL " + err.Error() // the URL itself is not shown, because it may contain a secret
		}
		return ""
	},
	"category": func(s string) string {
		_, ok := notify.ParseCategory(s)
		return messageUnless(ok, "no category is called %q", s)
	},
	"lane": func(s string) string {
		_, ok := notify.ParseLane(s)
		return messageUnless(ok, "no lane is called %q", s)
	},
	"keyspace": func(s string) string {
		return messageUnless(cassandra.KeyspaceName.MatchString(s), "%q is not a keyspace name: it must begin with a letter and have at most 48 characters of a-z, 0-9 and _", s)
	},
	"queue": func(s string) string {
		return messageUnless(queuePrefix.MatchString(s), "%q is not a queue prefix: it must have 1 to 71 letters, digits, - and _", s)
	},
	"topic": func(s string) string {
		return messageUnless(topicPrefix.MatchString(s), "%q is not a topic prefix: it must have at most 100 letters, digits, ., - and _", s)
	},
	"prefix": func(s string) string {
		return messageUnless(!strings.ContainsAny(s, "{} \n\r"), "%q must not have braces, spaces or line breaks", s)
	},
}

func messageUnless(ok bool, format, value string) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, value)
}

func notAddress(s string) string {
	_, port, err := net.SplitHostPort(s)
	if err == nil { // the port is a number up to 65535, or the name of a service
		_, err = net.DefaultResolver.LookupPort(context.Background(), "tcp", port)
	}
	return messageUnless(err == nil, "%q is not host:port", s)
}

func notLoopback(s string) string {
	if bad := notAddress(s); bad != "" && !noPort(s) {
		return bad
	}
	host, _, _ := net.SplitHostPort(s)
	return messageUnless(noPort(s) || host == "localhost" || net.ParseIP(host).IsLoopback(),
		"%q is not a loopback address: anybody who reaches the log can read it; use 127.0.0.1:PORT, or off", s)
}

func notHostPort(s string) string {
	host, port, err := net.SplitHostPort(s)
	if i := strings.LastIndexByte(s, '@'); i >= 0 { // in a URL the part before @ may contain a password
		s = "..." + s[i:]
	}
	return messageUnless(err == nil && host != "" && port != "", "%q is not host:port", s)
}

// validate returns the problems of the configuration, in no particular order.
func (c *Config) validate() (problems []problem) {
	bad := func(key, format string, args ...any) {
		problems = append(problems, problem{key: key, text: fmt.Sprintf(format, args...)})
	}
	for _, f := range setting.Check(c, forms) {
		bad(f.Key, "%s", f.Text)
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
			bad("log.partitions", "has no number of partitions for the channel %s", ch)
		}
	}
	for ch, cats := range c.Intake.Refuse {
		if _, ok := notify.ParseChannel(ch); !ok {
			bad("intake.refuse", "no channel is called %q", ch)
		}
		for _, cat := range cats {
			if text := forms["category"](cat); text != "" {
				bad("intake.refuse."+ch, "%s", text)
			}
		}
	}
	validateServers(c, bad)
	if _, err := c.egress(); err != nil {
		if e, ok := errors.AsType[*notify.Error](err); ok && e.Field != "" {
			bad(e.Field, "%s", e.Msg)
		} else {
			bad("triggers", "%v", err)
		}
	}
	if p := &c.Providers; p.Simulated {
		for key, url := range map[string][2]string{
			"apns.url": {p.APNs.URL, setting.Fill(provider.APNsConfig{}).URL}, "fcm.url": {p.FCM.URL, setting.Fill(provider.FCMConfig{}).URL},
			"twilio.url": {p.Twilio.URL, setting.Fill(provider.TwilioConfig{}).URL}, "sendgrid.url": {p.SendGrid.URL, setting.Fill(provider.SendGridConfig{}).URL},
		} {
			if url[0] == url[1] && !p.Stub {
				bad("providers."+key, "is the URL of the real provider, but providers.simulated says that all providers are simulators")
			}
		}
	}
	if c.Archive.Dir != "" && c.Archive.After >= c.History.Retention {
		bad("archive.after", "is %s, but must be below history.retention (%s)", c.Archive.After, c.History.Retention)
	}
	if c.Archive.S3.Bucket != "" && c.Archive.Dir == "" {
		bad("archive.s3.bucket", "needs archive.dir, because files are first written to that folder")
	}
	if n := len(c.Auth.KeySources()); n > 1 {
		bad("auth", "only one of jwks_url, jwks_file, key_file and hs256_file may be set, not %d", n)
	}
	return problems
}
