package notify

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	notifyv1 "github.com/notifyd/notifyd/proto/notify/v1"
)

func sample(n int) *Envelope {
	var w ReceiverWriter
	for i := range n {
		r := Receiver{Index: uint32(i * 3), User: fmt.Appendf(nil, "user-%d", i)}
		if i%4 == 1 {
			r.Address = []byte("+15550100")
		}
		if i%5 == 2 {
			r.Variables = []byte(`{"name":"Ann"}`)
		}
		w.Append(r)
	}
	e := &Envelope{
		Chunk:  Chunk{Base: NewBase(time.UnixMilli(1_790_000_000_123)), Partition: 5, Block: 7},
		FanOut: true, Channel: SMS, Category: Alert, Accepted: 1_790_000_000_123, Expires: 1_790_000_600_000,
		Caller: "bank", Campaign: "cmp_1", Trace: "00-aa-bb-01",
		Content: Content{
			Template: "t", Title: "Hi", Body: "Hello {{name}}", HTML: "<p>", Variables: []byte(`{"a":1}`),
			Data: []byte(`{"k":"v"}`), CollapseKey: "c", From: "+1",
		},
		Epoch: 1, Attempt: 2, Deferrals: 3, First: 9, NotBefore: 1_790_000_001_000, Cause: "http_503", Parent: 1<<63 + 5, Total: 300_000,
		TraceState: "vendor=x",
		Count:      uint32(n), Receivers: w.Bytes(),
	}
	return e
}

func TestEnvelopeRoundTrip(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 1000} {
		e := sample(n)
		var got Envelope
		if err := DecodeEnvelope(AppendEnvelope(nil, e), &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(&got, e) {
			t.Fatalf("n=%d\n got %+v\nwant %+v", n, got, *e)
		}
	}
}

// The schema is the contract with readers that are not ours: the generated code
// must read what the hand-written codec writes, field by field, and back.
func TestEnvelopeIsTheSchema(t *testing.T) {
	t.Parallel()
	e := sample(10)
	var pb notifyv1.Envelope
	if err := proto.Unmarshal(AppendEnvelope(nil, e), &pb); err != nil {
		t.Fatal(err)
	}
	if len(pb.ProtoReflect().GetUnknown()) != 0 || len(pb.Content.ProtoReflect().GetUnknown()) != 0 {
		t.Fatal("the codec writes fields the schema does not have")
	}
	want := &notifyv1.Envelope{
		Version: 1, Base: e.Chunk.Base[:], Partition: 5, Block: 7, Count: 10, Fanout: true, Channel: 2, Category: 2,
		AcceptedMs: e.Accepted, ExpiresMs: e.Expires, Caller: e.Caller, Campaign: e.Campaign, Traceparent: e.Trace,
		Content: &notifyv1.Content{
			Template: "t", Title: "Hi", Body: "Hello {{name}}", Html: "<p>", Variables: []byte(`{"a":1}`),
			Data: []byte(`{"k":"v"}`), CollapseKey: "c", From: "+1",
		},
		Epoch: 1, Attempt: 2, Deferrals: 3, First: 9, NotBeforeMs: e.NotBefore, Cause: e.Cause, ParentDigest: e.Parent, AcceptedCount: e.Total,
		Tracestate: "vendor=x",
		Receivers:  e.Receivers,
	}
	if !proto.Equal(&pb, want) {
		t.Fatalf("got %v\nwant %v", &pb, want)
	}
	b, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Envelope
	if err := DecodeEnvelope(b, &got); err != nil || !reflect.DeepEqual(&got, e) {
		t.Fatalf("err %v, got %+v", err, got)
	}
}

// A record written before a field existed, and one from a later schema of the
// same version, both read.
func TestEnvelopeOfAnotherSchema(t *testing.T) {
	t.Parallel()
	e := sample(3)
	old := &notifyv1.Envelope{
		Version: 1, Base: e.Chunk.Base[:], Count: 3, Channel: 1, Category: 3, Receivers: e.Receivers,
	}
	b, err := proto.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	later := append([]byte{0xfa, 0x07, 3, 'n', 'e', 'w', 0x80, 0x08, 1}, b...) // fields 127 (bytes) and 128 (varint)
	for _, b := range [][]byte{b, later} {
		var got Envelope
		if err := DecodeEnvelope(b, &got); err != nil {
			t.Fatal(err)
		}
		if got.Chunk.Base != e.Chunk.Base || got.Count != 3 || got.Category != Transactional || got.Epoch != 0 {
			t.Fatalf("got %+v", got)
		}
	}
}

func TestEnvelopeRefuses(t *testing.T) {
	t.Parallel()
	f := func(name string, change func(*notifyv1.Envelope)) {
		t.Helper()
		e := sample(3)
		pb := &notifyv1.Envelope{Version: 1, Base: e.Chunk.Base[:], Count: 3, Channel: 1, Category: 1, Receivers: e.Receivers}
		change(pb)
		b, err := proto.Marshal(pb)
		if err != nil {
			t.Fatal(err)
		}
		var got Envelope
		if err := DecodeEnvelope(b, &got); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
	f("no version", func(e *notifyv1.Envelope) { e.Version = 0 })
	f("a short base", func(e *notifyv1.Envelope) { e.Base = e.Base[:15] })
	f("no receivers", func(e *notifyv1.Envelope) { e.Count = 0 })
	f("a wrong count", func(e *notifyv1.Envelope) { e.Count = 4 })
	f("a cut column", func(e *notifyv1.Envelope) { e.Receivers = e.Receivers[:len(e.Receivers)-1] })
	f("an unknown channel", func(e *notifyv1.Envelope) { e.Channel = 9 })
	f("an unknown category", func(e *notifyv1.Envelope) { e.Category = 9 })
}

// An envelope of a newer release is not damaged, whatever stands behind its version.
func TestEnvelopeOfANewerRelease(t *testing.T) {
	t.Parallel()
	e := sample(3)
	b := AppendEnvelope(nil, e)
	b[1] = EnvelopeVersion + 1 // behind the tag of the first field
	for name, b := range map[string][]byte{"of this form": b, "of another form": append(b[:2:2], 0x12, 3, 'n', 'e', 'w')} {
		var got Envelope
		err := DecodeEnvelope(b, &got)
		if !errors.Is(err, ErrNewer) || errors.Is(err, ErrCorrupt) || KindOf(err) != KindUnavailable {
			t.Errorf("%s: %v, want that a newer release wrote it", name, err)
		}
	}
}

func FuzzDecodeEnvelope(f *testing.F) {
	f.Add(AppendEnvelope(nil, sample(1)))
	f.Add(AppendEnvelope(nil, sample(40)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Envelope
		if DecodeEnvelope(b, &e) != nil {
			return
		}
		var again Envelope
		if err := DecodeEnvelope(AppendEnvelope(nil, &e), &again); err != nil {
			t.Fatalf("what was read cannot be written and read: %v", err)
		}
		if again.Key() != e.Key() || !bytes.Equal(again.Receivers, e.Receivers) || again.Caller != e.Caller {
			t.Fatalf("got %+v, want %+v", again, e)
		}
	})
}

func FuzzReceivers(f *testing.F) {
	f.Add(uint64(1), 10)
	f.Fuzz(func(t *testing.T, seed uint64, n int) {
		n = max(0, n%500)
		rng := rand.New(rand.NewPCG(seed, 0))
		var w ReceiverWriter
		var want []Receiver
		index := uint32(0)
		for range n {
			index += uint32(rng.IntN(300))
			r := Receiver{Index: index, User: bytes.Repeat([]byte{'u'}, rng.IntN(MaxUserID+1))}
			if rng.IntN(2) == 0 {
				r.Address = bytes.Repeat([]byte{'a'}, 1+rng.IntN(MaxAddress))
			}
			if rng.IntN(2) == 0 {
				r.Variables = bytes.Repeat([]byte{'v'}, 1+rng.IntN(300))
			}
			w.Append(r)
			want = append(want, r)
			index++
		}
		rd := ReadReceivers(w.Bytes())
		var got Receiver
		for i := range want {
			if !rd.Next(&got) || got.Index != want[i].Index || !bytes.Equal(got.User, want[i].User) ||
				!bytes.Equal(got.Address, want[i].Address) || !bytes.Equal(got.Variables, want[i].Variables) {
				t.Fatalf("receiver %d: got %+v, want %+v, err %v", i, got, want[i], rd.Err())
			}
		}
		if rd.Next(&got) || rd.Err() != nil {
			t.Fatalf("read on behind the end: %+v, err %v", got, rd.Err())
		}
	})
}

func TestTargets(t *testing.T) {
	t.Parallel()
	want := []Target{{0, 3, []byte("apns:a")}, {2, 3, []byte("fcm:b")}}
	got, err := Targets(nil, AppendTargets(nil, want))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v, %v", got, err)
	}
	got, err = Targets(nil, []byte("+15550100"))
	if err != nil || len(got) != 1 || string(got[0].Address) != "+15550100" {
		t.Fatalf("got %v, %v", got, err)
	}
	if got, err = Targets(nil, nil); err != nil || got != nil {
		t.Fatalf("got %v, %v", got, err)
	}
	if _, err = Targets(nil, []byte{0, 1, 1, 200}); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("err = %v", err)
	}
}

func BenchmarkAppendEnvelope(b *testing.B) {
	e := sample(1)
	e.TraceState = "" // few have one
	buf := AppendEnvelope(nil, e)
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = AppendEnvelope(buf[:0], e)
		}
	})
	b.Run("generated", func(b *testing.B) {
		var pb notifyv1.Envelope
		if err := proto.Unmarshal(buf, &pb); err != nil {
			b.Fatal(err)
		}
		out := buf[:0]
		b.ReportAllocs()
		for b.Loop() {
			out, _ = proto.MarshalOptions{}.MarshalAppend(out[:0], &pb)
		}
	})
}

func BenchmarkDecodeEnvelope(b *testing.B) {
	for _, n := range []int{1, 8192} {
		buf := AppendEnvelope(nil, sample(n))
		b.Run(fmt.Sprintf("ours/%d", n), func(b *testing.B) {
			var e Envelope
			b.ReportAllocs()
			for b.Loop() {
				if err := DecodeEnvelope(buf, &e); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/receiver")
		})
	}
	buf := AppendEnvelope(nil, sample(1))
	b.Run("generated/1", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var pb notifyv1.Envelope
			if err := proto.Unmarshal(buf, &pb); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Skipping is reading without looking: whatever stands behind is read alike, and
// damage is found.
func TestSkip(t *testing.T) {
	t.Parallel()
	var w ReceiverWriter
	for i := range uint32(1000) {
		r := Receiver{Index: 3 * i, User: []byte(strings.Repeat("u", int(i%40)+1))}
		if i%7 == 0 {
			r.Index += 1 // deltas of 1 to 3
		}
		if i%50 == 0 {
			r.Address = []byte("apns:00")
		}
		if i%60 == 0 {
			r.Variables = []byte(`{"a":1}`)
		}
		if i >= 900 {
			r.Index += 1 << 20
		}
		w.Append(r)
	}
	for _, n := range []uint32{0, 1, 2, 49, 51, 500, 899, 900, 901, 999, 1000, 2000} {
		one, other := ReadReceivers(w.Bytes()), ReadReceivers(w.Bytes())
		var a, b Receiver
		for i := uint32(0); i < n && one.Next(&a); i++ {
		}
		other.Skip(n)
		if !bytes.Equal(one.Rest(), other.Rest()) {
			t.Fatalf("%d skipped leave %d bytes, want %d", n, len(other.Rest()), len(one.Rest()))
		}
		a = Receiver{}
		if one.Next(&a) != other.Next(&b) || a.Index != b.Index || !bytes.Equal(a.User, b.User) {
			t.Fatalf("behind %d skipped: %v, want %v", n, b, a)
		}
	}
	for _, size := range []uint32{1, 7, 50, 999, 1000, 1001, math.MaxUint32} {
		marks, err := cutColumn(w.Bytes(), 1000, []ReceiverReader{{next: 1}}, size)
		if err != nil || uint32(len(marks)-1) != (1000+size-1)/max(size, 1) && size != math.MaxUint32 || len(marks) < 2 {
			t.Fatalf("cut by %d: %d marks, %v", size, len(marks), err)
		}
		for i, m := range marks[1:] { // behind what was in it
			rd := ReadReceivers(w.Bytes())
			if rd.Skip(uint32(i) * size); m.next != rd.next || !bytes.Equal(m.Rest(), rd.Rest()) {
				t.Fatalf("cut by %d: mark %d is elsewhere", size, i)
			}
		}
	}
	cut := ReadReceivers(w.Bytes()[:len(w.Bytes())-1])
	if cut.Skip(1000); cut.Err() == nil {
		t.Error("a cut column is skipped without an error")
	}
}
