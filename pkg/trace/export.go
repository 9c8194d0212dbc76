package trace

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// exporter sends spans to the collector and counts exported and dropped spans. Its exports can be
// cancelled, so that Close ends in limited time.
type exporter struct {
	sdk.SpanExporter
	transport *http.Transport
	cfg       *Config

	unexported    atomic.Int64 // spans that have ended and are not exported yet
	failing       bool         // the last export failed; only the exporting goroutine uses it
	exportCtx     context.Context
	cancelExports context.CancelFunc // ends the current export and makes every later export fail at once
}

func newExporter(to sdk.SpanExporter, transport *http.Transport, cfg *Config) *exporter {
	e := &exporter{SpanExporter: to, transport: transport, cfg: cfg}
	e.exportCtx, e.cancelExports = context.WithCancel(context.Background())
	return e
}

// ExportSpans sends spans to the collector. If the collector does not accept spans, ExportSpans
// counts them as dropped and returns no error.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.exportCtx, cancel)()
	err := e.exportCtx.Err()
	if err == nil {
		err = e.SpanExporter.ExportSpans(ctx, spans)
	}
	e.unexported.Add(-int64(len(spans)))
	if err != nil {
		e.cfg.Dropped(ExportFailed, len(spans))
	} else {
		e.cfg.Exported(len(spans))
	}
	if failing := err != nil; failing != e.failing {
		e.failing = failing
		if failing {
			e.cfg.Logger.Warn("traces: the collector does not accept spans; spans are dropped until it does", slog.Any("error", err))
		} else {
			e.cfg.Logger.Info("traces: the collector accepts spans again")
		}
	}
	return nil
}

// spanGate limits how many spans enter the SDK's queue, because that queue drops spans without
// reporting them when it is full.
type spanGate struct {
	sdk.SpanProcessor
	exporter *exporter
}

func newSpanGate(out *exporter) *spanGate {
	return &spanGate{exporter: out, SpanProcessor: sdk.NewBatchSpanProcessor(out,
		// The queue has room for every span that the gate passes on.
		sdk.WithMaxQueueSize(out.cfg.MaxQueue), sdk.WithMaxExportBatchSize(min(512, out.cfg.MaxQueue)),
		sdk.WithBatchTimeout(out.cfg.Every), sdk.WithExportTimeout(out.cfg.Timeout))}
}

// OnEnd queues a span. If the queue is full, it drops the span and counts it.
func (g *spanGate) OnEnd(s sdk.ReadOnlySpan) {
	if g.exporter.unexported.Add(1) > int64(g.exporter.cfg.MaxQueue) {
		g.exporter.unexported.Add(-1)
		g.exporter.cfg.Dropped(QueueFull, 1)
		return
	}
	g.SpanProcessor.OnEnd(s)
}
