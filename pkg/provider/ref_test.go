package provider

import (
	"encoding/base64"
	"math"
	"net/url"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
	"pgregory.net/rapid"
)

func TestRefRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var r Ref
		copy(r.Key.Chunk.Base[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "base"))
		r.Key.Chunk.Partition = rapid.Uint16().Draw(t, "partition")
		r.Key.Chunk.Block = rapid.Uint32().Draw(t, "block")
		r.Key.Epoch = rapid.Uint16().Draw(t, "epoch")
		r.Key.Attempt = rapid.Uint16().Draw(t, "attempt")
		r.Key.Deferrals = rapid.Uint16().Draw(t, "deferrals")
		r.Key.First = rapid.Uint32().Draw(t, "first")
		r.Index = rapid.Uint32().Draw(t, "index")
		r.Addr = rapid.Byte().Draw(t, "addr")
		r.FanOut = rapid.Bool().Draw(t, "fan")
		s := EncodeRef(r)
		if len(s) > MaxRef || url.QueryEscape(s) != s {
			t.Fatalf("%q", s)
		}
		if back, err := DecodeRef(s); err != nil || back != r {
			t.Fatalf("%+v %v, want %+v", back, err, r)
		}
	})
}

func TestRef(t *testing.T) {
	t.Parallel()
	it := &testCall(notify.SMS, notify.Content{}, 8, phone).Items[7]
	r := RefOf(it)
	if r.ID() != it.ID() {
		t.Errorf("%v is not %v", r.ID(), it.ID())
	}
	if single := (Ref{Key: notify.RowKey{Chunk: notify.Chunk{Base: testBase}}}); len(EncodeRef(single)) != 34 || single.ID().FanOut {
		t.Errorf("%d %v", len(EncodeRef(single)), single.ID())
	}
	good := EncodeRef(Ref{Key: notify.RowKey{Chunk: notify.Chunk{Base: testBase}, First: math.MaxUint32}, Index: math.MaxUint32})
	overlong := append([]byte{refVersion}, make([]byte, 17)...)
	overlong = append(overlong, 0x80, 0, 0, 0, 0, 0, 0, 0) // a partition of 0 in two bytes
	for _, bad := range []string{base64.RawURLEncoding.EncodeToString(overlong), "", "A", good + "A", good[1:], good[:len(good)-1], "!" + good[1:], "AA" + good[2:], good + "=", good + good} {
		if got, err := DecodeRef(bad); notify.KindOf(err) != notify.KindInvalid || got != (Ref{}) {
			t.Errorf("%q: %+v %v", bad, got, err)
		}
	}
}

func FuzzDecodeRef(f *testing.F) {
	f.Add(EncodeRef(Ref{FanOut: true, Index: 300}))
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := DecodeRef(s)
		if err == nil && EncodeRef(r) != s {
			t.Fatalf("%q and %q are both %+v", s, EncodeRef(r), r)
		}
	})
}
