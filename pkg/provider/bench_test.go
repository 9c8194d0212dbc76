package provider

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// BenchmarkAPNs and BenchmarkFCM are pushes over 10 connections x 1,000 streams to a
// server of net/http in the same process, calls of 1,000 items, 16 at a time. The server
// takes the most of it: the client alone is measured by "go run ./tests/bench -only P5",
// whose profile (1.8 us a push) is flat: system calls 16%, copies 12%, maps of streams
// 11%, rendering 21% (of which AttemptID's hash is a third), header blocks 10%, AES 6%.
func BenchmarkAPNs(b *testing.B) {
	benchPushes(b, deviceToken, func(e Endpoint) Sender {
		return testAPNs(b, e, func(c *APNsConfig) { c.Connections = 10 })
	})
}

func BenchmarkFCM(b *testing.B) {
	benchPushes(b, fcmAddress, func(e Endpoint) Sender {
		cfg := FCMConfig{PushConfig: testPushConfig(e), TokenURL: e.BaseURL + "/token"}
		cfg.Connections = 10
		return startFCM(b, cfg)
	})
}

func benchPushes(b *testing.B, address func(int) string, start func(e Endpoint) Sender) {
	const latency = 50 * time.Millisecond
	_, e := tlsServer(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/token" {
			io.WriteString(w, `{"access_token":"tok","expires_in":3599}`)
			return
		}
		sleep(r.Context(), latency)
		io.WriteString(w, `{"name":"projects/demo/messages/0:7"}`)
	}), func(s *httptest.Server) { s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1000} })
	e.Timeout = 30 * time.Second
	s := start(e)
	call := testCall(notify.Push, notify.Content{Title: "Your order", Body: "It is on its way.", Data: []byte(`{"order":"12345"}`)}, 1000, address)
	calls := func(n int) {
		forEachIndex(n, 16, func() func(int) {
			return func(int) {
				s.Send(b.Context(), call, notify.Each(func(i int, r notify.Result) {
					if r.Class != notify.ClassAccepted {
						b.Errorf("%+v", r)
					}
				}))
			}
		})
	}
	calls(16)
	cpu, n := cpuTime(), 0
	for b.Loop() {
		calls(16)
		n += 16 * 1000
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "pushes/s")
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(n), "cpu-us/push")
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAPNsPayload is one payload: 21 ns static, 350 ns with two variables,
// no allocation.
func BenchmarkAPNsPayload(b *testing.B) {
	a, err := NewAPNs(APNsConfig{TeamID: "T", KeyID: "K", Key: testECKey, Topic: "t"})
	if err != nil {
		b.Fatal(err)
	}
	f := func(name, body, variables string) {
		b.Run(name, func(b *testing.B) {
			call := testCall(notify.Push, notify.Content{Title: "Your order", Body: body, Data: []byte(`{"order":"12345"}`)}, 1, deviceToken)
			call.Items[0].Variables = []byte(variables)
			c, err := a.newCall(call, testNow)
			if err != nil {
				b.Fatal(err)
			}
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				if buf, err = c.(*apnsCall).appendPayload(buf[:0], &call.Items[0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	f("static", "It is on its way, dear customer.", "")
	f("variables", "It is on its way, {{name}}: {{order}}.", `{"name":"Ann Example","order":12345}`)
}

func BenchmarkRef(b *testing.B) {
	r := RefOf(&testCall(notify.SMS, notify.Content{}, 1, phone).Items[0])
	buf := make([]byte, 0, MaxRef)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = AppendRef(buf[:0], r)
		}
	})
	s := EncodeRef(r)
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := DecodeRef(s); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkSendGridEncode is a request of 1,000 receivers, compressed: 2 ms.
func BenchmarkSendGridEncode(b *testing.B) {
	sg, err := NewSendGrid(SendGridConfig{APIKey: "k", From: "a@b.example"})
	if err != nil {
		b.Fatal(err)
	}
	call := testCall(notify.Email, notify.Content{Title: "Hi", Body: "Dear {{name}}", HTML: "<p>{{name}}</p>"}, 1000, mailbox)
	for i := range call.Items {
		call.Items[i].Variables = fmt.Appendf(nil, `{"name":"user %d"}`, i)
	}
	var body bytes.Buffer
	b.ReportAllocs()
	for b.Loop() {
		m, err := sg.newMailing(call)
		if err != nil {
			b.Fatal(err)
		}
		var parts []personalization
		for i := range call.Items {
			p, err := m.personalize(i)
			if err != nil {
				b.Fatal(err)
			}
			parts = append(parts, p)
		}
		body.Reset()
		if err := m.encode(&body, parts, "pool"); err != nil {
			b.Fatal(err)
		}
	}
}
