package store

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

// single is the row of a single send that was taken at once.
func single() notify.Row {
	return notify.Row{
		Key:   notify.RowKey{Chunk: notify.Chunk{Base: notify.Base{1, 2, 3, 15: 4}}},
		Count: 1, Digest: 0x1234567890abcdef, DoneUpTo: 1, StartedUpTo: 1, Starts: 1, Done: true,
		Default: notify.Exception{State: notify.Sent, Provider: "apns"}, Caller: "checkout", Channel: notify.Push, Category: notify.OTP,
		Accepted: 1_795_000_000_123, Updated: 1_795_000_000_143, Topic: "notifications-push", LogPart: 7, Offset: 123_456_789,
	}
}

// chunk is the row of 8,300 receivers, failures of which were refused.
func chunk(failures int) notify.Row {
	r := single()
	r.Count, r.DoneUpTo, r.StartedUpTo, r.Campaign = 8300, 8300, 8300, "cmp_01JH0000000000000000000000"
	for i := range failures {
		r.Exceptions = append(r.Exceptions, notify.Exception{Pos: uint32(i * 80), State: notify.Failed, Code: "apns_unregistered", Provider: "apns"})
	}
	return r
}

func TestRowSizes(t *testing.T) {
	t.Parallel()
	retry := single()
	for i := range uint32(100) {
		retry.Index = append(retry.Index, 1000+i*80)
	}
	for _, c := range []struct {
		what string
		row  notify.Row
		most int
	}{
		{"single", single(), 80},
		{"8,300 receivers", chunk(0), 110},
		{"8,300 receivers, 100 failed", chunk(100), 640},
		{"retry of 100", retry, 190},
	} {
		n := len(AppendRow(nil, &c.row))
		t.Logf("%s: %d bytes", c.what, n)
		if n > c.most {
			t.Errorf("%s takes %d bytes, more than %d", c.what, n, c.most)
		}
	}
}

// TestRowWithManyCodes: more words than the table of a record holds.
func TestRowWithManyCodes(t *testing.T) {
	t.Parallel()
	r := single()
	for i := range 500 {
		r.Exceptions = append(r.Exceptions, notify.Exception{Pos: uint32(i), State: notify.Failed, Code: fmt.Sprintf("code_%d", i*i%97), Provider: fmt.Sprint(i)})
	}
	got := notify.Row{Key: r.Key}
	if !ReadRow(AppendRow(nil, &r), &got) || !reflect.DeepEqual(got, r) {
		t.Fatalf("got %+v", got)
	}
}

func TestNewerRowIsRefused(t *testing.T) {
	t.Parallel()
	r := single()
	v := AppendRow(nil, &r)
	for _, version := range []byte{0, RowVersion + 1} {
		v[0] = version
		if ReadRow(v, new(notify.Row)) {
			t.Errorf("a row of version %d was read", version)
		}
	}
}

// FuzzRow: whatever the bytes are, decoding neither panics nor allocates more
// than they are long, and what it accepts is written again the same.
func FuzzRow(f *testing.F) {
	for _, r := range []notify.Row{{}, single(), chunk(3)} {
		r.Index = []uint32{4, 5, 900}
		f.Add(AppendRow(nil, &r))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		var r, again notify.Row
		if !ReadRow(v, &r) || CheckRow(&r) != nil {
			return
		}
		if cap(r.Index) > len(v) || cap(r.Exceptions) > len(v) {
			t.Fatalf("%d indexes and %d exceptions from %d bytes", cap(r.Index), cap(r.Exceptions), len(v))
		}
		if !ReadRow(AppendRow(nil, &r), &again) || !reflect.DeepEqual(again, r) {
			t.Fatalf("got %+v, want %+v", again, r)
		}
	})
}

func BenchmarkRowCodec(b *testing.B) {
	for _, c := range []struct {
		name string
		row  notify.Row
	}{{"single", single()}, {"chunk", chunk(0)}, {"chunk100", chunk(100)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				buf = AppendRow(buf[:0], &c.row)
				var out notify.Row
				if !ReadRow(buf, &out) {
					b.Fatal("corrupt")
				}
			}
		})
	}
}
