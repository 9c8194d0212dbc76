package trace

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// exporter counts what becomes of spans on their way to the collector, and can be
// cut off.
type exporter struct {
	sdk.SpanExporter
	transport *http.Transport
	cfg       *Config

	queued  atomic.Int64 // ended and not exported
	failing bool         // the last export failed; of the exporting goroutine alone
	on      context.Context
	cut     context.CancelFunc // ends an export that is under way, and all later ones at once
}

func newExporter(to sdk.SpanExporter, transport *http.Transport, cfg *Config) *exporter {
	e := &exporter{SpanExporter: to, transport: transport, cfg: cfg}
	e.on, e.cut = context.WithCancel(context.Background())
	return e
}

// ExportSpans gives spans to the collector. What it did not take is counted here,
// so the error goes no further.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.on, cancel)()
	err := e.on.Err()
	if err == nil {
		err = e.SpanExporter.ExportSpans(ctx, spans)
	}
	e.queued.Add(-int64(len(spans)))
	if err != nil {
		e.cfg.Dropped(ExportFailed, len(spans))
	} else {
		e.cfg.Exported(len(spans))
	}
	if failing := err != nil; failing != e.failing {
		e.failing = failing
		if failing {
			e.cfg.Logger.Warn("traces: the collector does not take spans; they are dropped until it does", slog.Any("error", err))
		} else {
			e.cfg.Logger.Info("traces: the collector takes spans again")
		}
	}
	return nil
}

// gate stands before the SDK's queue: that one drops what is too much without
// telling anybody.
type gate struct {
	sdk.SpanProcessor
	out *exporter
}

func newGate(out *exporter) *gate {
	return &gate{out: out, SpanProcessor: sdk.NewBatchSpanProcessor(out,
		// Room for all that the gate lets through.
		sdk.WithMaxQueueSize(out.cfg.MaxQueue), sdk.WithMaxExportBatchSize(min(512, out.cfg.MaxQueue)),
		sdk.WithBatchTimeout(out.cfg.Every), sdk.WithExportTimeout(out.cfg.Timeout))}
}

// OnEnd queues a span, or drops it.
func (g *gate) OnEnd(s sdk.ReadOnlySpan) {
	if g.out.queued.Add(1) > int64(g.out.cfg.MaxQueue) {
		g.out.queued.Add(-1)
		g.out.cfg.Dropped(QueueFull, 1)
		return
	}
	g.SpanProcessor.OnEnd(s)
}
