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

// Config configures a Tracer. The zero value turns tracing off. The tagged fields are in the
// section "tracing" of the configuration file; only the program sets the other fields.
type Config struct {
	Endpoint    string  `koanf:"endpoint" is:"collector" empty:"yes" doc:"URL of a collector that accepts OpenTelemetry traces over OTLP/HTTP, e.g. http://127.0.0.1:4318; empty: no spans are made (traceparents are passed on anyway)"`
	Sample      float64 `koanf:"sample" default:"0.01" min:"0" max:"1" doc:"share of the requests without a header traceparent that are traced; for other requests the header decides; 0: none"`
	HeadersFile string  `koanf:"headers_file" doc:"file with headers for the collector, one per line as Name: value; protect the file if a header is secret"`
	Service     string  `koanf:"service" default:"notifyd" doc:"value of the attribute service.name of the spans"`

	// Headers contains the headers read from HeadersFile.
	Headers map[string]string
	// Version is the service.version of the spans.
	Version string
	// MaxQueue is how many spans may wait for the collector. Further spans are dropped and counted.
	MaxQueue int `default:"2048" min:"1"`
	// Timeout is the time limit of one export.
	Timeout time.Duration `default:"10s"`
	// Every is how long a span waits so that it is exported together with later spans.
	Every time.Duration `default:"2s"`
	// Flush is how long Close waits for the export of spans.
	Flush time.Duration `default:"3s"`
	// Exported is called with the number of spans that the collector has accepted. Dropped is
	// called with the number of lost spans and the reason: "queue_full" or "export_failed". Both
	// may be nil. They must not block.
	Exported func(n int)
	Dropped  func(reason string, n int)
	// Logger logs when exports begin to fail and when they succeed again.
	Logger *slog.Logger `default:"discard"`
}

// Reasons why spans are dropped.
const (
	QueueFull    = "queue_full"
	ExportFailed = "export_failed"
)

func (c Config) withDefaults() Config {
	sample := c.Sample // 0 is a valid value: no request begins a trace
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

// CheckEndpoint returns an error if the text raw is not a valid URL of a collector.
func CheckEndpoint(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return errors.New("cannot be parsed as a URL")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return errors.New("must be http:// or https:// with a host, e.g. http://127.0.0.1:4318")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("must not contain a user, query or fragment")
	}
	return nil
}

// Tracer makes spans and exports them. A nil Tracer makes no spans. A Tracer is safe for concurrent
// use. Only Close waits for the collector.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   oteltrace.Tracer
	exporter *exporter
	cfg      Config
}

// New returns a Tracer and starts one goroutine that exports spans until Close. If no endpoint is
// configured, it starts no goroutine and returns nil without an error. It returns an error if the
// endpoint or a setting is invalid.
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
		// A failed batch is dropped and counted. The next batch tries the collector again.
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false}),
	))
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	t := &Tracer{cfg: cfg, exporter: newExporter(client, transport, &cfg)}
	t.provider = sdk.NewTracerProvider(
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(cfg.Sample))),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version))),
		sdk.WithSpanProcessor(newSpanGate(t.exporter)),
	)
	t.tracer = t.provider.Tracer("github.com/notifyd/notifyd")
	return t, nil
}

// noRedirect refuses redirects. The collector's headers may be secret, and they must not be sent to
// another server.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close exports the waiting spans, for at most Config.Flush, and stops the exporting goroutine.
// Spans that end later are dropped. Close may be called only once.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	cut := time.AfterFunc(t.cfg.Flush, t.exporter.cancelExports)
	defer cut.Stop()
	// Shutdown gets no deadline: with a deadline, it could return while the exporting goroutine
	// still runs. Instead the timer above makes exports fail after the time Flush, and then
	// Shutdown ends.
	if err := t.provider.Shutdown(context.Background()); err != nil {
		t.cfg.Logger.Warn("traces: the export of spans did not stop cleanly", slog.Any("error", err))
	}
	t.exporter.transport.CloseIdleConnections()
}

// Span is one step of a trace. The zero value means no span, and every method accepts it. Only one
// goroutine at a time may use a Span.
type Span struct {
	span oteltrace.Span // nil if the span is not recorded
	ctx  Context        // the context to put into requests
}

// Request begins the span of a request. The parameter incoming is the trace context of the request.
// If it is the zero Context, the sampler decides whether Request begins a new trace.
func (t *Tracer) Request(name string, incoming Context, began time.Time) Span {
	if t == nil {
		return Span{ctx: incoming}
	}
	return t.startRequest(name, incoming, began)
}

func (t *Tracer) startRequest(name string, in Context, began time.Time) Span {
	if !in.None() && !in.Sampled() {
		return Span{ctx: in}
	}
	return t.start(name, in, oteltrace.SpanKindServer, oteltrace.WithTimestamp(began))
}

// Start begins the span of a step within the process, as a child of parent. It makes no span if
// parent is not sampled.
func (t *Tracer) Start(name string, parent Context) Span {
	if t == nil { // startChild is a separate function so that this function is inlined
		return Span{ctx: parent}
	}
	return t.startChild(name, parent, oteltrace.SpanKindInternal)
}

// Call begins the span of a call to an external server, as a child of parent. It makes no span if
// parent is not sampled.
func (t *Tracer) Call(name string, parent Context) Span {
	if t == nil {
		return Span{ctx: parent}
	}
	return t.startChild(name, parent, oteltrace.SpanKindClient)
}

func (t *Tracer) startChild(name string, from Context, kind oteltrace.SpanKind) Span {
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

// spanContext converts c to OpenTelemetry's form. c was checked by FromHeader.
func (c Context) spanContext() oteltrace.SpanContext {
	id, _ := oteltrace.TraceIDFromHex(c.Parent[3:35])
	span, _ := oteltrace.SpanIDFromHex(c.Parent[36:52])
	state, _ := oteltrace.ParseTraceState(c.State)
	return oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: id, SpanID: span, TraceFlags: oteltrace.FlagsSampled, TraceState: state, Remote: true,
	})
}

// Recording reports whether the span is recorded. Callers check Recording before they compute an
// expensive attribute.
func (s *Span) Recording() bool { return s.span != nil }

// Context returns the context to put into requests. It is the span's own context or, if the span is
// not recorded, the context from which the span was begun.
func (s *Span) Context() Context { return s.ctx }

// Int sets an attribute of the span to a number.
func (s *Span) Int(key string, v int) {
	if s.span != nil {
		s.span.SetAttributes(attribute.Int(key, v))
	}
}

// Str sets an attribute of the span to a text.
func (s *Span) Str(key, v string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String(key, v))
	}
}

// Link records that the span also belongs to the trace of another context.
func (s *Span) Link(other Context) {
	if s.span != nil && !other.None() {
		s.span.AddLink(oteltrace.Link{SpanContext: other.spanContext()})
	}
}

// Fail marks the step as failed. The parameter code must be an error code and not free text,
// because free text could contain an address.
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
