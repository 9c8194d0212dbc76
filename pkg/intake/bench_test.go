package intake

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

type nullLog struct{}

func (nullLog) Append(context.Context, []log.Record) error { return nil }

func benchService(b *testing.B) *Service {
	r := newRig(b, Config{})
	st := r.stores
	st.Log = nullLog{}
	s, err := New(st, Config{})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func fanBodyJSON(n int, object bool) []byte {
	var b bytes.Buffer
	b.WriteString(`{"channel":"push","category":"marketing","content":{"title":"Sale","body":"Everything must go"},"receivers":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		if object {
			fmt.Fprintf(&b, `{"user_id":"u%08d","address":"apns:%064d"}`, i, i)
		} else {
			fmt.Fprintf(&b, `"u%08d"`, i)
		}
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

func fanBodyProto(n int) []byte {
	var w notify.ReceiverWriter
	for i := range n {
		w.Append(notify.Receiver{Index: uint32(i), User: fmt.Appendf(nil, "u%08d", i)})
	}
	return protoFanout("push", "marketing", notify.Content{Title: "Sale"}, "", 0, uint32(n), w.Bytes())
}

// On two busy cores, best of 12 runs, ns a receiver, all checks and the
// duplicate check included (log.Partition takes 4 of them): ids 28 in JSON
// and in protobuf, with a key 36 (SHA-256 of the body), objects with an address
// of 69 bytes 157. The library alone takes 143 for ids.
func BenchmarkFanout(b *testing.B) {
	const n = 50_000
	for _, c := range []struct {
		name, media, key string
		body             []byte
	}{
		{"json/ids", request.JSON, "", fanBodyJSON(n, false)},
		{"json/ids/keyed", request.JSON, "k", fanBodyJSON(n, false)},
		{"json/objects", request.JSON, "", fanBodyJSON(n, true)},
		{"protobuf/ids", request.Proto, "", fanBodyProto(n)},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := benchService(b)
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				m := request.Meta{Caller: "bench", ContentType: c.media}
				if c.key != "" {
					m.Key = strconv.Itoa(i)
					i++
				}
				if _, err := s.Fanout(b.Context(), m, c.body); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/receiver")
		})
	}
}

const singleBody = `{"channel":"push","category":"otp","to":{"user_id":"user-000001"},"content":{"title":"Your code","body":"Your code is 123456","collapse_key":"otp"}}`

// 970 ns on two busy cores; 1,980 with the library's decoder.
func BenchmarkSingle(b *testing.B) {
	s := benchService(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Single(b.Context(), request.Meta{Caller: "bench"}, []byte(singleBody)); err != nil {
			b.Fatal(err)
		}
	}
}

// cpu is what this process has used: on a machine shared with others it says
// more than the wall.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func reportCPU(b *testing.B, from time.Duration, items int) {
	b.ReportMetric(float64(cpu(b)-from)/float64(b.N*items), "cpu-ns/item")
}

// Best of 20 runs on two busy cores, ns an item: JSON 600, lines 570, protobuf
// 500, 17 allocations a batch; JSON with the library's decoder and no reused
// buffers 1,580 and 2,041. Of processor time JSON takes 482 ns an item, and took
// 564 while an item's fields were copied on the heap, where each pointer is told
// to the collector (medians of five runs in turns, load 33).
func BenchmarkBatch(b *testing.B) {
	const n = 500
	var array, lines, proto []byte
	for i := range n {
		item := fmt.Sprintf(`{"channel":"push","category":"transactional","to":{"user_id":"user-%06d"},"content":{"title":"Order %d","body":"Your order was shipped"}}`, i, i)
		array = append(append(array, ','), item...)
		lines = append(append(lines, item...), '\n')
		proto = appendProtoNote(proto, "push", "transactional", fmt.Sprintf("user-%06d", i), notify.Content{Title: "Order", Body: "Your order was shipped"})
	}
	array[0] = '['
	array = append(array, ']')
	for _, c := range []struct {
		name, media string
		body        []byte
	}{{"json", request.JSON, array}, {"ndjson", request.NDJSON, lines}, {"protobuf", request.Proto, proto}} {
		b.Run(c.name, func(b *testing.B) {
			s := benchService(b)
			b.ReportAllocs()
			defer reportCPU(b, cpu(b), n)
			for b.Loop() {
				if _, err := s.Batch(b.Context(), request.Meta{Caller: "bench", ContentType: c.media}, c.body); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/item")
		})
	}
}
