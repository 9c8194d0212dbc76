package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/trace"
)

// problem is a value that is refused: its key, the value and the rule, and where
// it was set.
type problem struct{ key, text, origin string }

func (p problem) Error() string {
	s := p.key + ": " + p.text
	if p.origin != "" {
		s += "; set by " + p.origin
	}
	return s
}

// originOf says where a value, or those of a group that are not defaults, were
// set; empty: nowhere but in the program.
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

// undecodable are the values that are not of their key's kind. Only numbers,
// switches and times are told: others may hold a secret.
func undecodable(err error, fields map[string]field, get func(key string) any) (problems []problem) {
	switch e := err.(type) { //nolint:errorlint // each is looked into below
	case nil:
		return nil
	case *mapstructure.DecodeError:
		f, ok := fields[e.Name()]
		if !ok {
			return []problem{{key: e.Name(), text: e.Unwrap().Error()}}
		}
		var what string
		switch _, duration := f.value.Interface().(time.Duration); {
		case duration:
			what = "a length of time such as 500ms, 10s or 2h"
		case f.value.CanInt():
			what = "a whole number"
		case f.value.CanFloat():
			what = "a number"
		case f.value.Kind() == reflect.Bool:
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

// validate returns what is wrong with the values, in no order.
func (c *Config) validate() (problems []problem) {
	bad := func(key, format string, args ...any) {
		problems = append(problems, problem{key: key, text: fmt.Sprintf(format, args...)})
	}
	for key, addr := range map[string]string{"api.listen": c.API.Listen, "api.admin": c.API.Admin, "log.listen": c.Log.Listen} {
		if addr == "" && key == "api.admin" || key == "log.listen" && noPort(addr) {
			continue
		}
		host, port, err := net.SplitHostPort(addr)
		if err == nil { // a number up to 65535, or the name of a service
			_, err = net.DefaultResolver.LookupPort(context.Background(), "tcp", port)
		}
		switch ip := net.ParseIP(host); {
		case err != nil:
			bad(key, "%q is not host:port", addr)
		case key == "log.listen" && host != "localhost" && !ip.IsLoopback():
			bad(key, "%q is not a loopback address: anybody who reaches the log can read it; use 127.0.0.1:PORT, or off", addr)
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
	c.validateServers(bad)
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
	least("jobs.approve_above", int64(c.Jobs.ApproveAbove), 0)
	least("jobs.most", int64(c.Jobs.Most), 1)
	least("triggers.caller_in_flight", int64(c.Triggers.CallerInFlight), 1)
	least("triggers.in_flight", int64(c.Triggers.InFlight), 1)
	least("triggers.max_pending", int64(c.Triggers.MaxPending), 1)
	if c.Triggers.Timeout > 25*time.Second {
		bad("triggers.timeout", "%s is above 25s: a call ends within its claim", c.Triggers.Timeout)
	}
	if _, err := c.egress(); err != nil {
		if e, ok := errors.AsType[*notify.Error](err); ok && e.Field != "" {
			bad(e.Field, "%s", e.Msg)
		} else {
			bad("triggers", "%v", err)
		}
	}
	least("workers.max_retries", int64(c.Workers.MaxRetries), 0)
	least("providers.apns.connections", int64(c.Providers.APNs.Connections), 1)
	if known := []string{string(provider.ClientFrames), string(provider.ClientNetHTTP)}; !slices.Contains(known, c.Providers.APNs.Client) {
		bad("providers.apns.client", "%q is not %s or %s", c.Providers.APNs.Client, known[0], known[1])
	}
	least("providers.twilio.parallel", int64(c.Providers.Twilio.Parallel), 1)
	for key, rate := range map[string]float64{
		"api.rate": c.API.Rate, "providers.twilio.rate": c.Providers.Twilio.Rate, "providers.sendgrid.rate": c.Providers.SendGrid.Rate,
	} {
		if !(rate > 0) {
			bad(key, "%v is not above 0", rate)
		}
	}
	for key, d := range map[string]time.Duration{
		"history.retention": c.History.Retention, "jobs.keep": c.Jobs.Keep, "archive.every": c.Archive.Every, "archive.after": c.Archive.After, "archive.wait": c.Archive.Wait, "intake.idempotency": c.Intake.Idempotency, "workers.batch_age": c.Workers.BatchAge,
		"workers.drain": c.Workers.Drain, "workers.call_limit": c.Workers.CallLimit,
		"timers.max_delay": c.Timers.MaxDelay, "triggers.timeout": c.Triggers.Timeout,
		"providers.config_open_for": c.Providers.ConfigOpenFor,
	} {
		if d <= 0 {
			bad(key, "%s is not above 0", d)
		}
	}
	if c.Audit.Every < 0 {
		bad("audit.every", "%s is below 0", c.Audit.Every)
	}
	if c.Audit.Window < 0 {
		bad("audit.window", "%s is below 0", c.Audit.Window)
	}
	if c.Archive.Dir != "" && c.Archive.After >= c.History.Retention {
		bad("archive.after", "%s is not below history.retention, %s", c.Archive.After, c.History.Retention)
	}
	if c.Archive.S3.Bucket != "" && c.Archive.Dir == "" {
		bad("archive.s3.bucket", "needs archive.dir: files are written there first")
	}
	if u, err := url.Parse(c.Archive.S3.Endpoint); c.Archive.S3.Endpoint != "" && (err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https")) {
		bad("archive.s3.endpoint", "%q is not an http or https URL", c.Archive.S3.Endpoint)
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
	if c.Tracing.Endpoint != "" {
		if err := trace.CheckEndpoint(c.Tracing.Endpoint); err != nil {
			bad("tracing.endpoint", "the URL %s", err) // not the URL: it may hold a secret
		}
	}
	if !(c.Tracing.Sample >= 0 && c.Tracing.Sample <= 1) {
		bad("tracing.sample", "%g is not from 0 to 1", c.Tracing.Sample)
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
			bad("workers."+name, "in_flight %d, window %d and ahead %d: each must be at least 1", l.InFlight, l.Window, l.Ahead)
		}
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Logging.Level) {
		bad("logging.level", "%q is not debug, info, warn or error", c.Logging.Level)
	}
	if c.Logging.Format != "json" && c.Logging.Format != "text" {
		bad("logging.format", "%q is not json or text", c.Logging.Format)
	}
	return problems
}

// CheckAuth returns notify.KindInvalid where c names no key to check tokens with. The
// defaults name none, so this is not one of the problems of a file.
func (c *Config) CheckAuth() error {
	if c.Auth.JWKSURL+c.Auth.JWKSFile+c.Auth.KeyFile+c.Auth.HS256 != "" {
		return nil
	}
	return notify.Invalid("bad_config", "auth", "set one of auth.key_file, auth.jwks_url, auth.jwks_file and auth.hs256_file: no token could be checked")
}
