package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// About holds the parts of a debug bundle that the node itself does not have.
type About struct {
	Config string          // configuration with origins, as Loaded.Print writes it
	Log    func() []string // returns the last lines of the log, with secrets removed; nil: no lines are kept
}

// debug collects the data for a bug report. If a part cannot be read, a text with the reason replaces
// the part: bundles are made when something is broken.
func (n views) debug(ctx context.Context) (any, error) {
	out := api.Debug{Texts: map[string]string{}, Binaries: map[string][]byte{}}
	text := func(name string, make func(*bytes.Buffer) error) {
		var b bytes.Buffer
		if err := make(&b); err != nil {
			fmt.Fprintf(&b, "\nnot complete: %v\n", err)
		}
		out.Texts[name] = b.String()
	}
	text("build.txt", func(b *bytes.Buffer) error {
		fmt.Fprintf(b, "notifyd %s\n%s %s/%s, %d processors, %d goroutines\n", n.cfg.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), runtime.NumGoroutine())
		if info, ok := debug.ReadBuildInfo(); ok {
			b.WriteString(info.String())
		}
		return nil
	})
	text("config.txt", func(b *bytes.Buffer) error {
		b.WriteString(n.about.Config)
		return nil
	})
	text("log.txt", func(b *bytes.Buffer) error {
		if n.about.Log != nil {
			b.WriteString(strings.Join(n.about.Log(), "\n") + "\n")
		}
		return nil
	})
	text("metrics.txt", func(b *bytes.Buffer) error { return writeMetrics(b, n.metrics.Registry) })
	text("offsets.txt", func(b *bytes.Buffer) error {
		if err := writeOffsets(ctx, b, n.admin); err != nil {
			return err
		}
		return json.NewEncoder(b).Encode(n.groups.lags())
	})
	text("goroutines.txt", func(b *bytes.Buffer) error { return pprof.Lookup("goroutine").WriteTo(b, 1) })
	var heap bytes.Buffer
	if err := pprof.Lookup("heap").WriteTo(&heap, 0); err != nil {
		out.Texts["heap.txt"] = "no heap profile: " + err.Error() + "\n"
	} else {
		out.Binaries["heap.pb.gz"] = heap.Bytes()
	}
	return out, nil
}

func writeMetrics(b *bytes.Buffer, registry *prometheus.Registry) error {
	families, err := registry.Gather()
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(b, f); err != nil {
			return err
		}
	}
	return err
}

// writeOffsets writes the first offset and the end of each partition of the log.
func writeOffsets(ctx context.Context, b *bytes.Buffer, admin *log.Admin) error {
	topics := []string{notify.TopicFailed, trigger.TopicDLQ}
	for _, l := range notify.Lanes() {
		topics = append(topics, l.Topic(), l.DLQTopic())
	}
	starts, err := admin.StartOffsets(ctx, topics...)
	if err != nil {
		return err
	}
	ends, err := admin.EndOffsets(ctx, topics...)
	if err != nil {
		return err
	}
	lines := make([]string, 0, len(ends))
	for tp, end := range ends {
		lines = append(lines, fmt.Sprintf("%s/%03d from %d to %d", tp.Topic, tp.Partition, starts[tp], end))
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, "\n") + "\n")
	return nil
}
