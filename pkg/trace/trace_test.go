package trace

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The environment's settings for OpenTelemetry exporters are meant for other programs.
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "OTEL_") {
			os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m)
}

const (
	id   = "4bf92f3577b34da6a3ce929d0e0e4736"
	good = "00-" + id + "-00f067aa0ba902b7-01"
)

func TestFromHeader(t *testing.T) {
	t.Parallel()
	f := func(want string, parents ...string) {
		t.Helper()
		h := http.Header{}
		for _, p := range parents {
			h.Add("traceparent", p)
		}
		if got := FromHeader(h); got.Parent != want {
			t.Errorf("%q: got %q, want %q", parents, got.Parent, want)
		}
	}
	f("")
	f(good, good)
	f(strings.TrimSuffix(good, "1")+"0", strings.TrimSuffix(good, "1")+"0") // not sampled
	f("00-"+id+"-00f067aa0ba902b7-03", "00-"+id+"-00f067aa0ba902b7-03")     // flags we do not know stay
	f("", good, good)                                                       // twice
	f("", "")
	f("", strings.ToUpper(good))
	f("", good+"-")
	f("", good+"-extra")           // of version 00
	f("", good[:54])               // too short
	f("", " "+good)                // net/http trims headers; nothing else may
	f("", "ff"+good[2:])           // the forbidden version
	f("", "0g"+good[2:])           // no hex
	f("", "00_"+good[3:])          // no dash
	f("", good[:35]+"_"+good[36:]) // no dash
	f("", good[:52]+"_"+good[53:]) // no dash
	f("", "00-"+strings.Repeat("0", 32)+"-00f067aa0ba902b7-01")
	f("", "00-"+id+"-0000000000000000-01")
	f("", "00-"+id[:31]+"g-00f067aa0ba902b7-01")
	f("", "00-"+id+"-00f067aa0ba902bX-01")
	f("", "00-"+id+"-00f067aa0ba902b7-0x")
	// The known fields of a later version are read and sent on as version 00.
	f(good, "01"+good[2:])
	f(good, "cc"+good[2:]+"-what-the-future-will-be-like")
	f(good, "01-"+id+"-00f067aa0ba902b7-ff")
	f(good[:53]+"00", "01-"+id+"-00f067aa0ba902b7-fe")
	f("", "cc"+good[2:]+".what")
}

func TestTracestate(t *testing.T) {
	t.Parallel()
	f := func(want string, states ...string) {
		t.Helper()
		h := http.Header{"Traceparent": {good}, "Tracestate": states}
		if got := FromHeader(h); got.State != want || got.Parent != good {
			t.Errorf("%q: got %+v, want %q", states, got, want)
		}
	}
	f("")
	f("a=1", "a=1")
	f("a=1,b=2", "a=1", "b=2")
	f("tenant@vendor=x:y", "tenant@vendor=x:y")
	f("", "A=1")
	f("", "no member")
	f("", "a=1,a=2")
	f("", "a="+strings.Repeat("x", 257))
	f("", "a="+strings.Repeat("x", 250)+",b="+strings.Repeat("x", 250)+",c="+strings.Repeat("x", 20)) // 527 bytes
	many := strings.Repeat("k=v,", 33)
	f("", many)
	// Never without a traceparent.
	if got := FromHeader(http.Header{"Traceparent": {"00-zz"}, "Tracestate": {"a=1"}}); got != (Context{}) {
		t.Errorf("%+v", got)
	}
}

func TestSampled(t *testing.T) {
	t.Parallel()
	for parent, want := range map[string]bool{"": false, good: true, good[:53] + "00": false, good[:53] + "03": true, good[:53] + "02": false} {
		if got := (Context{Parent: parent}).Sampled(); got != want {
			t.Errorf("%q: %v", parent, got)
		}
	}
}

// TestOff: without an endpoint there is no tracer, nothing runs (TestMain looks)
// and nothing is made; a context is carried as it came.
func TestOff(t *testing.T) {
	t.Parallel()
	tr, err := New(Config{Sample: 1, Service: "x"})
	if tr != nil || err != nil {
		t.Fatalf("%v, %v", tr, err)
	}
	in := Context{Parent: good, State: "a=1"}
	for _, s := range []Span{tr.Request("r", in, time.Now()), tr.Start("s", in), tr.Call("c", in)} {
		if s.Recording() || s.Context() != in {
			t.Errorf("%+v", s)
		}
		s.Int("n", 1)
		s.Str("s", "x")
		s.Link(in)
		s.Fail("no")
		s.End()
	}
	if s := tr.Request("r", Context{}, time.Now()); !s.Context().None() {
		t.Errorf("a trace was begun: %+v", s.Context())
	}
	tr.Close()
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{Endpoint: "127.0.0.1:4318"}, {Endpoint: "ftp://x"}, {Endpoint: "http://"}, {Endpoint: "http://u:p@x"}, {Endpoint: "http://x/?k=v"},
		{Endpoint: "http://x", Sample: -0.1}, {Endpoint: "http://x", Sample: 1.1}, {Endpoint: "http://x", MaxQueue: -1},
	} {
		if tr, err := New(cfg); err == nil {
			tr.Close()
			t.Errorf("%+v is taken", cfg)
		}
	}
}

// BenchmarkOff measures the cost of the stages if nothing is exported.
func BenchmarkOff(b *testing.B) {
	var off *Tracer
	with, without := http.Header{"Traceparent": {good}}, http.Header{}
	now := time.Now()
	b.Run("request", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s := off.Request("POST /v1/notifications", FromHeader(with), now)
			s.End()
		}
	})
	b.Run("none", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s := off.Request("POST /v1/notifications", FromHeader(without), now)
			s.End()
		}
	})
	b.Run("window", func(b *testing.B) {
		b.ReportAllocs()
		in := Context{Parent: good}
		for b.Loop() {
			s := off.Start("deliver", in)
			if s.Recording() {
				b.Fatal("on")
			}
			s.End()
		}
	})
}

// BenchmarkOn measures the cost of a recorded request.
func BenchmarkOn(b *testing.B) {
	tr, err := New(Config{Endpoint: "http://127.0.0.1:1", Sample: 1, Flush: time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	defer tr.Close()
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		s := tr.Request("POST /v1/notifications", Context{Parent: good}, now)
		s.End()
	}
}
