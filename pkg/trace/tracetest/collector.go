// Package tracetest is a trace collector for tests. It accepts OTLP over HTTP in protobuf and keeps
// the spans in memory.
package tracetest

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is an exported span. Ids are hexadecimal. Parent is "" for a root span.
type Span struct {
	Trace, ID, Parent, Name string
	Service                 string
	Kind                    string
	Failed                  string            // message of the error status; "" if the step has not failed
	Attrs                   map[string]string // numbers are in decimal
	Links                   []string          // ids of the linked traces
}

// Collector is a server on the loopback address. Close stops it.
type Collector struct {
	srv  *http.Server
	addr string
	done chan struct{}

	mu      sync.Mutex
	spans   []Span
	headers []http.Header
	bad     []string
	changed chan struct{} // closed and replaced at each export
}

// Start listens on a free port and serves.
func Start() (*Collector, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &Collector{addr: l.Addr().String(), done: make(chan struct{}), changed: make(chan struct{})}
	c.srv = &http.Server{Handler: c}
	go func() {
		defer close(c.done)
		_ = c.srv.Serve(l) // ends with Close
	}()
	return c, nil
}

// URL returns the endpoint for the configuration of a tracer.
func (c *Collector) URL() string { return "http://" + c.addr }

// Close stops the server and waits until it has ended.
func (c *Collector) Close() {
	_ = c.srv.Close()
	<-c.done
}

// ServeHTTP accepts one export.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, "not gzip", http.StatusBadRequest)
			return
		}
		body = z
	}
	b, err := io.ReadAll(body)
	var req collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(b, &req)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = append(c.headers, r.Header.Clone())
	if err != nil || r.URL.Path != "/v1/traces" || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.bad = append(c.bad, r.Method+" "+r.URL.Path)
		http.Error(w, "not an OTLP export", http.StatusBadRequest)
		return
	}
	for _, rs := range req.ResourceSpans {
		service := ""
		for _, kv := range rs.GetResource().GetAttributes() {
			if kv.Key == "service.name" {
				service = kv.Value.GetStringValue()
			}
		}
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				c.spans = append(c.spans, spanOf(service, s))
			}
		}
	}
	close(c.changed)
	c.changed = make(chan struct{})
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func spanOf(service string, s *otlp.Span) Span {
	out := Span{
		Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId),
		Name: s.Name, Service: service, Kind: s.Kind.String(), Attrs: map[string]string{},
	}
	if s.Status.GetCode() == otlp.Status_STATUS_CODE_ERROR {
		out.Failed = s.Status.Message
	}
	for _, kv := range s.Attributes {
		v := kv.Value.GetStringValue()
		if n, ok := kv.Value.GetValue().(*common.AnyValue_IntValue); ok {
			v = strconv.FormatInt(n.IntValue, 10)
		}
		out.Attrs[kv.Key] = v
	}
	for _, l := range s.Links {
		out.Links = append(out.Links, hex.EncodeToString(l.TraceId))
	}
	return out
}

// Spans returns the spans exported so far, and a channel that is closed at the next export.
func (c *Collector) Spans() ([]Span, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans), c.changed
}

// Headers returns the header of each request. The result bad contains the method and the path of
// each request that was not a valid export.
func (c *Collector) Headers() (hs []http.Header, bad []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.headers), slices.Clone(c.bad)
}
