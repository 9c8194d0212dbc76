package app

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/tool/capacity"
)

// TestDefaultsCarryThePlan: the default configuration carries as much as pkg/tool/capacity says for
// a machine of its kind. A default cluster has as many partitions as the plan has workers.
func TestDefaultsCarryThePlan(t *testing.T) {
	t.Parallel()
	in := capacity.Default()
	sheet, err := capacity.Compute(in)
	if err != nil {
		t.Fatal(err)
	}
	c := DefaultFor(EnginesDistributed)
	count := func(key string) float64 { return float64(sheet.Line(key).Count) }
	for _, x := range []struct {
		name       string
		have, want float64
	}{
		{"log.partitions.push", float64(c.Log.Partitions["push"]), count("partitions_push")},
		{"log.partitions.sms", float64(c.Log.Partitions["sms"]), count("partitions_sms")},
		{"log.partitions.email", float64(c.Log.Partitions["email"]), count("partitions_email")},
		{"workers.push.in_flight", float64(c.Workers.Push.InFlight), in.PushConnections * in.PushStreams},
		{"a push worker's rate", float64(c.Workers.Push.InFlight) / in.PushLatency.Seconds(), in.PushWorkerRate},
		{"providers.apns.connections", float64(c.Providers.APNs.Connections), in.PushConnections},
		{"workers.push.window", float64(c.Workers.Push.Window), in.Window},
		{"workers.sms.in_flight", float64(c.Workers.SMS.InFlight), in.SMSInFlight},
		{"providers.twilio.rate", c.Providers.Twilio.Rate, in.SMSAccountRate},
		{"providers.sendgrid.rate", c.Providers.SendGrid.Rate, in.MailIPRate},
		{"workers.email.window", float64(c.Workers.Email.Window), in.MailBatch},
		{"timers.shards", float64(c.Timers.Shards), 64}, // the source's sub-shards of a minute
		{"timers.jitter", c.Timers.Jitter.Seconds(), 5}, // the source's spread, here later only
	} {
		if x.have != x.want {
			t.Errorf("%s is %g by default, the plan needs %g", x.name, x.have, x.want)
		}
	}
}

// TestDefaultsByEngine: Load also sets the defaults of servers. It keeps what a file sets, and does
// not change the defaults of the embedded engines.
func TestDefaultsByEngine(t *testing.T) {
	t.Parallel()
	load := func(flags map[string]any) Config {
		t.Helper()
		l, _ := Load(nil, nil, flags) // the error says that no servers are named; this test ignores it
		return l.Config
	}
	far := load(map[string]any{"engines": EnginesDistributed, "log.partitions.sms": 3})
	if p := far.Log.Partitions; p["push"] != 18 || p["sms"] != 3 || p["email"] != 84 || far.Timers.Shards != 64 {
		t.Errorf("with servers: partitions %v, %d shards", p, far.Timers.Shards)
	}
	if c := load(map[string]any{"engines": EnginesDistributed, "timers.shards": 8}); c.Timers.Shards != 8 {
		t.Errorf("timers.shards was set to 8 and is %d", c.Timers.Shards)
	}
	near := load(nil)
	if p := near.Log.Partitions; p["push"] != 6 || p["sms"] != 4 || p["email"] != 4 || near.Timers.Shards != 16 || near.Timers.Jitter != 5*time.Second {
		t.Errorf("embedded: partitions %v, %d shards, jitter %s", p, near.Timers.Shards, near.Timers.Jitter)
	}
}
