package app

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
)

// The doctor warns when the brokers keep offsets for less than kafka.keep.
func TestDoctorOnOffsetRetention(t *testing.T) {
	t.Parallel()
	warns := func(minutes string, keep time.Duration) (found bool) {
		synctest.Test(t, func(t *testing.T) {
			var vn kfake.VirtualNetwork
			c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ListenFn(vn.Listen), kfake.Ports(9092),
				kfake.BrokerConfigs(map[string]string{"offsets.retention.minutes": minutes}))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			admin, err := log.NewAdmin(log.AdminConfig{Conn: log.Conn{Brokers: c.ListenAddrs(), Dial: vn.DialContext}})
			if err != nil {
				t.Fatal(err)
			}
			defer admin.Close()
			n := &Node{admin: admin}
			n.cfg.Kafka.Keep = keep
			d := &doctor{n: n}
			d.lookAtKafka(t.Context())
			found = slices.ContainsFunc(d.Findings, func(f engine.Finding) bool {
				return f.Level == "warn" && strings.Contains(f.Detail, "offsets.retention.minutes is "+minutes) && f.Repair != ""
			})
		})
		return found
	}
	week := 7 * 24 * time.Hour
	if !warns("1440", week) {
		t.Error("offsets that are kept for a day: no warning")
	}
	if warns("10080", week) {
		t.Error("a warning about Kafka's default")
	}
}
