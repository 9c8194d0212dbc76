package trace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/notifyd/notifyd/pkg/setting"
)

// Config of a Tracer. The zero value is off. The tagged fields are the section tracing of
// the configuration file; the others are set by the program only.
type Config struct {
	Endpoint    string  `koanf:"endpoint" is:"collector" empty:"yes" doc:"URL of a collector that takes OpenTelemetry traces by OTLP/HTTP, e.g. http://127.0.0.1:4318; empty: no spans are made (a traceparent travels all the same)"`
	Sample      float64 `koanf:"sample" default:"0.01" min:"0" max:"1" doc:"share of requests without a traceparent that begin a trace; those with one say themselves whether they are recorded"`
	HeadersFile string  `koanf:"headers_file" doc:"file of headers for the collector, a line each: Name: value; they may be secret"`
	Service     string  `koanf:"service" default:"notifyd" doc:"service.name of the spans"`

	// Headers are what HeadersFile holds.
	Headers map[string]string
	// Version is service.version of the spans.
	Version string
	// MaxQueue is how many spans wait for the collector at most; more are dropped and counted.
	MaxQueue int `default:"2048" min:"1"`
	// Timeout of one export.
	Timeout time.Duration `default:"10s"`
	// Every is how long a span waits for others.
	Every time.Duration `default:"2s"`
	// Flush is how long Close waits for spans to be exported.
	Flush time.Duration `default:"3s"`
	// Exported is told of spans the collector has taken, Dropped of those that
	// nobody will see: "queue_full" or "export_failed". They may be nil and must not
	// block.
	Exported func(n int)
	Dropped  func(reason string, n int)
	// Logger hears when exports begin to fail, and when they do no more.
	Logger *slog.Logger `default:"discard"`
}

// Why spans were dropped.
const (
	QueueFull    = "queue_full"
	ExportFailed = "export_failed"
)

func (c Config) withDefaults() Config {
	sample := c.Sample // 0 says that no request begins a trace
	c = setting.Fill(c)
	c.Sample = sample
	if c.Exported == nil {
		c.Exported = func(int) {}
	}
	if c.Dropped == nil {
		c.Dropped = func(string, int) {}
	}
	return c
}

// CheckEndpoint says what is wrong with the URL of a collector.
func CheckEndpoint(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return errors.New("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return errors.New("is http:// or https:// and a host, e.g. http://127.0.0.1:4318")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("has no user, query or fragment")
	}
	return nil
}

// Tracer makes spans and exports them. A nil Tracer makes none. Safe for
// concurrent use; no method but Close ever waits for the collector.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   oteltrace.Tracer
	out      *exporter
	cfg      Config
}

// New returns a Tracer, with one goroutine that exports until Close; nil without
// an error where no endpoint is configured: then nothing is started.
func New(cfg Config) (*Tracer, error) {
	if cfg.Endpoint == "" {
		return nil, nil
	}
	cfg = cfg.withDefaults()
	if err := CheckEndpoint(cfg.Endpoint); err != nil {
		return nil, fmt.Errorf("trace: the endpoint %w", err)
	}
	if err := setting.Err("tracing", &cfg); err != nil {
		return nil, err
	}
	endpoint := strings.TrimRight(cfg.Endpoint, "/")
	if u, _ := url.Parse(endpoint); u.Path == "" {
		endpoint += "/v1/traces"
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: 30 * time.Second}
	client, err := otlptrace.New(context.Background(), otlptracehttp.NewClient(
		otlptracehttp.WithEndpointURL(endpoint), otlptracehttp.WithHeaders(cfg.Headers),
		otlptracehttp.WithHTTPClient(&http.Client{Transport: transport, Timeout: cfg.Timeout, CheckRedirect: noRedirect}),
		// What fails is dropped and counted: the next batch tries again anyway.
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false}),
	))
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	t := &Tracer{cfg: cfg, out: newExporter(client, transport, &cfg)}
	t.provider = sdk.NewTracerProvider(
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(cfg.Sample))),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version))),
		sdk.WithSpanProcessor(newGate(t.out)),
	)
	t.tracer = t.provider.Tracer("github.com/notifyd/notifyd")
	return t, nil
}

// noRedirect keeps the headers of a collector from going elsewhere.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close exports what waits, for Config.Flush at most, and ends the exports. Spans
// that end afterwards are dropped. It may be called once.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	cut := time.AfterFunc(t.cfg.Flush, t.out.cut)
	defer cut.Stop()
	// Not bounded by a context, which would leave the goroutine behind: cut ends
	// the exports.
	if err := t.provider.Shutdown(context.Background()); err != nil {
		t.cfg.Logger.Warn("traces: stopping the export", slog.Any("error", err))
	}
	t.out.transport.CloseIdleConnections()
}

// Span is one step of a trace. The zero value, which every method takes, is none.
// One goroutine at a time uses it.
type Span struct {
	span oteltrace.Span // nil: not recorded
	ctx  Context        // to carry on
}

// Request begins the span of a request that came with in. Without one it begins a
// trace of its own, if that is sampled.
func (t *Tracer) Request(name string, in Context, began time.Time) Span {
	if t == nil {
		return Span{ctx: in}
	}
	return t.request(name, in, began)
}

func (t *Tracer) request(name string, in Context, began time.Time) Span {
	if !in.None() && !in.Sampled() {
		return Span{ctx: in}
	}
	return t.start(name, in, oteltrace.SpanKindServer, oteltrace.WithTimestamp(began))
}

// Start begins a step within the process, below from; none if from is not sampled.
func (t *Tracer) Start(name string, from Context) Span {
	if t == nil { // small enough to be inlined
		return Span{ctx: from}
	}
	return t.below(name, from, oteltrace.SpanKindInternal)
}

// Call begins a call to somebody else's server.
func (t *Tracer) Call(name string, from Context) Span {
	if t == nil {
		return Span{ctx: from}
	}
	return t.below(name, from, oteltrace.SpanKindClient)
}

func (t *Tracer) below(name string, from Context, kind oteltrace.SpanKind) Span {
	if !from.Sampled() {
		return Span{ctx: from}
	}
	return t.start(name, from, kind)
}

func (t *Tracer) start(name string, from Context, kind oteltrace.SpanKind, opts ...oteltrace.SpanStartOption) Span {
	ctx := context.Background()
	if !from.None() {
		ctx = oteltrace.ContextWithRemoteSpanContext(ctx, from.spanContext())
	}
	_, span := t.tracer.Start(ctx, name, append(opts, oteltrace.WithSpanKind(kind))...)
	if !span.IsRecording() {
		return Span{ctx: from}
	}
	sc := span.SpanContext()
	return Span{span: span, ctx: Context{
		Parent: "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String(), State: from.State,
	}}
}

// spanContext is c, which was checked when it came in.
func (c Context) spanContext() oteltrace.SpanContext {
	id, _ := oteltrace.TraceIDFromHex(c.Parent[3:35])
	span, _ := oteltrace.SpanIDFromHex(c.Parent[36:52])
	state, _ := oteltrace.ParseTraceState(c.State)
	return oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: id, SpanID: span, TraceFlags: oteltrace.FlagsSampled, TraceState: state, Remote: true,
	})
}

// On reports whether the span is recorded: whoever has to work for an attribute
// asks first.
func (s *Span) On() bool { return s.span != nil }

// Context is what to carry on: the span's own, or, where it is not recorded, what
// it was begun from.
func (s *Span) Context() Context { return s.ctx }

// Int sets an attribute.
func (s *Span) Int(key string, v int) {
	if s.span != nil {
		s.span.SetAttributes(attribute.Int(key, v))
	}
}

// Str sets an attribute.
func (s *Span) Str(key, v string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String(key, v))
	}
}

// Link says that the span is also part of another trace.
func (s *Span) Link(to Context) {
	if s.span != nil && !to.None() {
		s.span.AddLink(oteltrace.Link{SpanContext: to.spanContext()})
	}
}

// Fail marks the step as failed; code is a word, not a text that might hold an
// address.
func (s *Span) Fail(code string) {
	if s.span != nil {
		s.span.SetStatus(codes.Error, code)
	}
}

// End ends the span. It never waits.
func (s *Span) End() {
	if s.span != nil {
		s.span.End()
	}
}
