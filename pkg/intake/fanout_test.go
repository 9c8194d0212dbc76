package intake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/request"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

type fanAnswer struct {
	First    string `json:"first_id"`
	Accepted int    `json:"accepted"`
	Count    int    `json:"rejected_count"`
	Rejected []struct {
		Index        uint32
		Code, Detail string
	} `json:"rejected"`
}

func parseFan(t interface{ Fatal(...any) }, a request.Answer) (f fanAnswer) {
	if err := json.Unmarshal(a.Body, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func fanout(receivers string) []byte {
	return []byte(`{"channel":"push","category":"marketing","content":{"title":"t"},"receivers":` + receivers + `}`)
}

func TestFanoutForms(t *testing.T) {
	t.Parallel()
	const head = `"channel":"push","category":"marketing","content":{"title":"t"}`
	var w notify.ReceiverWriter
	w.Append(notify.Receiver{Index: 0, User: []byte("u1")})
	w.Append(notify.Receiver{Index: 1, User: []byte("u2"), Address: []byte("fcm:x"), Variables: []byte(`{"a":{}}`)})
	w.Append(notify.Receiver{Index: 2, User: []byte("üser")})
	w.Append(notify.Receiver{Index: 3, User: []byte("u1")})
	const list = `["u1", {"user_id":"u2","address":"fcm:x","variables":{"a":{}}} ,` + "\n" + ` "\u00fcser","u1" ]`
	for _, c := range []struct{ name, media, body string }{
		{"last", request.JSON, `{` + head + `,"receivers":` + list + `}`},
		{"spaced", "", " {" + head + ",\"receivers\" : " + list + "\n } \n"},
		{"first", request.JSON, `{"receivers":` + list + `,` + head + `}`},
		{"between", request.JSON, `{"channel":"push","receivers":` + list + `,"category":"marketing","content":{"title":"t"}}`},
		{"escaped name", request.JSON, `{` + head + `,"re\u0063eivers":` + list + `}`},
		{"ndjson", request.NDJSON, "{" + head + "}\n\"u1\"\n{\"user_id\":\"u2\",\"address\":\"fcm:x\",\"variables\":{\"a\":{}}}\r\n\n \"\\u00fcser\" \n\"u1\"\n"},
		{"ndjson, no last newline", request.NDJSON, "{" + head + "}\n\"u1\"\n{\"variables\":{\"a\":{}},\"user_id\":\"u2\",\"address\":\"fcm:x\"}\n\"üser\"\n\"u1\""},
		{"protobuf", request.Proto, string(protoFanout("push", "marketing", notify.Content{Title: "t"}, "", 0, 4, w.Bytes()))},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			a, err := r.Fanout(t.Context(), request.Meta{Caller: "c", ContentType: c.media}, []byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			f := parseFan(t, a)
			if a.Status != 201 || f.Accepted != 3 || f.Count != 1 || len(f.Rejected) != 1 || f.Rejected[0].Index != 3 || f.Rejected[0].Code != "duplicate_user" {
				t.Errorf("answer %d %s", a.Status, a.Body)
			}
			got := received(t, r.log.records())
			want := map[uint32]string{0: "u1||", 1: `u2|fcm:x|{"a":{}}`, 2: "üser||"}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("receivers %v, want %v", got, want)
			}
			for _, e := range r.log.envelopes(t) {
				if first := e.ID(0).String(); first != f.First || !e.FanOut || e.Content.Title != "t" {
					t.Errorf("envelope of %s, answer %s", first, f.First)
				}
			}
		})
	}
}

// received reads all receivers of records by index, and fails on one that
// comes twice or lies in the wrong partition.
func received(t interface {
	Helper()
	Fatalf(string, ...any)
}, recs []log.Record) map[uint32]string {
	t.Helper()
	got := map[uint32]string{}
	for _, rec := range recs {
		var e notify.Envelope
		if err := notify.DecodeEnvelope(rec.Value, &e); err != nil {
			t.Fatalf("%v", err)
		}
		rd, n := notify.ReadReceivers(e.Receivers), uint32(0)
		for x := (notify.Receiver{}); rd.Next(&x); n++ {
			if _, ok := got[x.Index]; ok {
				t.Fatalf("receiver %d comes twice", x.Index)
			}
			if x.Index >= 1<<31 {
				t.Fatalf("index %d", x.Index)
			}
			got[x.Index] = fmt.Sprintf("%s|%s|%s", x.User, x.Address, x.Variables)
		}
		if n != e.Count || rd.Err() != nil {
			t.Fatalf("%d receivers of %d, %v", n, e.Count, rd.Err())
		}
	}
	return got
}

func TestBadFanouts(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 30) + "1" + strings.Repeat("}", 30)
	var gap, short notify.ReceiverWriter
	gap.Append(notify.Receiver{Index: 1, User: []byte("u")})
	short.Append(notify.Receiver{Index: 0, User: []byte("u")})
	proto := func(count uint32, column []byte) string {
		return string(protoFanout("push", "otp", notify.Content{Title: "t"}, "", 0, count, column))
	}
	const head = `{"channel":"push","category":"otp","content":{"title":"t"}}` + "\n"
	for _, c := range []struct{ name, media, body, code, field string }{
		{"empty", "", ``, "bad_json", ""},
		{"array", "", `[]`, "wrong_type", ""},
		{"no receivers", "", `{"channel":"push","category":"otp","content":{"title":"t"}}`, "required", "receivers"},
		{"null receivers", "", string(fanout(`null`)), "required", "receivers"},
		{"empty receivers", "", string(fanout(`[ ]`)), "required", "receivers"},
		{"receivers twice", "", `{"receivers":["a"],` + string(fanout(`["b"]`))[1:], "duplicate_key", "receivers"},
		{"receivers twice, the other way round", "", strings.TrimSuffix(string(fanout(`["b"]`)), "}") + `,"receivers":["a"]}`, "duplicate_key", "receivers"},
		{"unknown field", "", string(fanout(`["a"],"nope":1`)), "unknown_field", "nope"},
		{"unknown array", "", string(fanout(`["a"],"nope":[1]`)), "unknown_field", "nope"},
		{"trailing data", "", string(fanout(`["a"]`)) + `x`, "bad_json", ""},
		{"trailing comma", "", string(fanout(`["a",]`)), "wrong_type", "receivers[1]"},
		{"no comma", "", string(fanout(`["a" "b"]`)), "bad_json", ""},
		{"not closed", "", `{"channel":"push","category":"otp","content":{"title":"t"},"receivers":["a"`, "bad_json", ""},
		{"string not closed", "", string(fanout(`["a]`)), "bad_json", "receivers[0]"},
		{"number", "", string(fanout(`["a",7]`)), "wrong_type", "receivers[1]"},
		{"null receiver", "", string(fanout(`[null]`)), "wrong_type", "receivers[0]"},
		{"unknown field of a receiver", "", string(fanout(`["a",{"user_id":"b","token":"x"}]`)), "unknown_field", "receivers[1].token"},
		{"duplicate key of a receiver", "", string(fanout(`[{"user_id":"b","user_id":"c"}]`)), "duplicate_key", "receivers[0].user_id"},
		{"duplicate key, escaped", "", string(fanout(`[{"user_id":"b","user\u005fid":"c"}]`)), "duplicate_key", "receivers[0].user_id"},
		{"wrong type in a receiver", "", string(fanout(`[{"user_id":1}]`)), "wrong_type", "receivers[0].user_id"},
		{"variables twice inside", "", string(fanout(`[{"user_id":"b","variables":{"a":1,"a":2}}]`)), "duplicate_key", "receivers[0].variables.a"},
		{"too deep", "", string(fanout(`[{"user_id":"b","variables":` + deep + `}]`)), "too_deep", "receivers[0].variables"},
		{"bad UTF-8", "", string(fanout("[\"a\xff\"]")), "bad_json", "receivers[0]"},
		{"control character unescaped", "", string(fanout("[\"a\nb\"]")), "bad_json", "receivers[0]"},
		{"lone surrogate", "", string(fanout(`["\udc00"]`)), "bad_json", "receivers[0]"},
		{"past expiry", "", string(fanout(`["a"],"expires_at":"2001-01-01T00:00:00Z"`)), "expires_in_past", "expires_at"},
		{"no content", "", `{"channel":"push","category":"otp","receivers":["a"]}`, "content_required", "content"},
		{"part without campaign", "", string(fanout(`["a"],"part":1`)), "required", "campaign"},
		{"negative part", "", string(fanout(`["a"],"part":-1`)), "wrong_type", "part"},
		{"bad campaign", "", string(fanout(`["a"],"campaign":"cmp_1"`)), "bad_campaign", "campaign"},
		{"ndjson: head with receivers", request.NDJSON, string(fanout(`["a"]`)) + "\n\"b\"", "unknown_field", "receivers"},
		{"ndjson: only a head", request.NDJSON, head, "required", "receivers"},
		{"ndjson: two on a line", request.NDJSON, head + `"a" "b"`, "bad_json", "receivers[1]"},
		{"ndjson: a comma", request.NDJSON, head + "\"a\",\n\"b\"", "bad_json", "receivers[1]"},
		{"ndjson: cut off", request.NDJSON, head + "\"a\"\n{\"user_id\":", "wrong_type", "receivers[1].user_id"},
		{"protobuf: damaged", request.Proto, "\xff\xff", "bad_protobuf", ""},
		{"protobuf: unknown field", request.Proto, string(appendNumber([]byte(proto(1, short.Bytes())), 12, 1)), "unknown_field", "#12"},
		{"protobuf: field twice", request.Proto, proto(1, short.Bytes()) + string(appendNumber(nil, 8, 1)), "duplicate_key", "count"},
		{"protobuf: expires at no time", request.Proto, proto(1, short.Bytes()) + string(appendNumber(nil, 4, 1<<63-1)), "out_of_range", "expires_at"},
		{"protobuf: expires before 1970", request.Proto, proto(1, short.Bytes()) + string(appendNumber(nil, 4, 1<<64-1)), "expires_in_past", "expires_at"},
		{"protobuf: scheduled at no time", request.Proto, proto(1, short.Bytes()) + string(appendNumber(nil, 5, 1<<63-1)), "scheduled_too_far", "scheduled_at"},
		{"protobuf: part", request.Proto, proto(1, short.Bytes()) + string(appendNumber(nil, 7, 1<<32)), "wrong_type", "part"},
		{"protobuf: count of 64 bits", request.Proto, proto(0, short.Bytes()) + string(appendNumber(nil, 8, 1<<64-1)), "wrong_type", "count"},
		{"protobuf: gap", request.Proto, proto(1, gap.Bytes()), "bad_column", "receivers[0]"},
		{"protobuf: count", request.Proto, proto(2, short.Bytes()), "bad_column", "count"},
		{"protobuf: damaged column", request.Proto, proto(1, []byte{0, 99, 'x'}), "bad_column", "receivers[0]"},
		{"protobuf: bad UTF-8", request.Proto, proto(1, []byte{0, 4, 0xff}), "bad_utf8", "receivers[0]"},
		{"protobuf: variables", request.Proto, proto(1, []byte{0, 4 | 2, 'u', 1, '7'}), "wrong_type", "receivers[0].variables"},
		{"media type", "text/csv", "a,b", "unsupported_media_type", "Content-Type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			_, err := r.Fanout(t.Context(), request.Meta{Caller: "c", Key: "k", ContentType: c.media}, []byte(c.body))
			refused(t, err, notify.KindInvalid, c.code, c.field)
			if r.stored() {
				t.Error("something is stored")
			}
		})
	}
}

func TestRejectedReceivers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 9000)
	r := newRig(t, Config{})
	a, err := r.Fanout(t.Context(), request.Meta{Caller: "c"}, fanout(`["ok","",{}, "`+long[:200]+`", {"user_id":"b","address":"x"}, {"user_id":"b"}, {"user_id":"b"},
		{"user_id":"c","variables":{"v":"`+long+`"}}, {"user_id":"d","address":"fcm:`+long[:600]+`"}, "a\u0000", "ok", "last"]`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	f := parseFan(t, a)
	for _, x := range f.Rejected {
		got = append(got, fmt.Sprintf("%d %s", x.Index, x.Code))
		if x.Detail == "" || strings.Contains(x.Detail, "xxx") {
			t.Errorf("detail %q", x.Detail)
		}
	}
	want := "1 user_id_required, 2 user_id_required, 3 user_id_too_long, 4 bad_address, 6 duplicate_user, 7 variables_too_long, 8 address_too_long, 9 bad_user_id, 10 duplicate_user"
	if strings.Join(got, ", ") != want || f.Accepted != 3 {
		t.Errorf("rejected %v, accepted %d", got, f.Accepted)
	}
	if got := received(t, r.log.records()); fmt.Sprint(got) != "map[0:ok|| 5:b|| 11:last||]" {
		t.Errorf("receivers %v", got)
	}
	r = newRig(t, Config{MaxRejected: 2})
	a, _ = r.Fanout(t.Context(), request.Meta{Caller: "c"}, fanout(`["a","a","a","a","b"]`))
	if f := parseFan(t, a); f.Accepted != 2 || f.Count != 3 || len(f.Rejected) != 2 {
		t.Errorf("answer %s", a.Body)
	}
}

// A block is halved until no record passes MaxRecord, and a repeat uses the
// frozen size.
func TestBlockHalves(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	var b bytes.Buffer
	vars := strings.Repeat("v", 4000)
	for i := range 3000 {
		fmt.Fprintf(&b, `,{"user_id":"u%d","variables":{"v":"%s"}}`, i, vars)
	}
	a, err := r.Fanout(t.Context(), request.Meta{Caller: "c", Key: "k"}, fanout("["+b.String()[1:]+"]"))
	if err != nil || parseFan(t, a).Accepted != 3000 {
		t.Fatalf("%v", err)
	}
	if n := len(received(t, r.log.records())); n != 3000 {
		t.Errorf("%d receivers", n)
	}
	largest := 0
	for _, rec := range r.log.records() {
		largest = max(largest, len(rec.Value))
	}
	if largest > 983_040 || largest < 300_000 {
		t.Errorf("largest record has %d bytes", largest)
	}
	for _, row := range r.idem.rows {
		if row.BlockSize >= 8192 || row.BlockSize&(row.BlockSize-1) != 0 || row.BlockSize == 0 {
			t.Errorf("block size %d", row.BlockSize)
		}
	}
}

// The block size comes out of one look at what was read, and is the one that
// halving it until all fits would end with: a repeat of an older request makes
// the same records.
func TestFittingIsHalving(tt *testing.T) {
	tt.Parallel()
	rapid.Check(tt, func(t *rapid.T) {
		parts := uint16(rapid.IntRange(1, 5).Draw(t, "partitions"))
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(0, 400)), 1, 600).Draw(t, "sizes")
		before := rapid.SampledFrom([]int{0, 0, 200, 20_000}).Draw(t, "refused before")
		block := uint32(1) << rapid.IntRange(1, 16).Draw(t, "block")
		f := newSplitter()
		read := func(block uint32) int {
			f.reset(notify.Push, parts, block, 10, len(sizes))
			for range before {
				f.addReceiver(nil, nil, nil)
			}
			for i, n := range sizes {
				f.addReceiver(fmt.Appendf(nil, "user-%d", i), nil, bytes.Repeat([]byte{'v'}, n))
			}
			return f.largestChunk()
		}
		// Room at which a byte more or less decides.
		room := read(block>>rapid.IntRange(0, bits.Len32(block)-1).Draw(t, "halvings")) - rapid.IntRange(0, 1).Draw(t, "less")
		want := block
		for read(want) > room && want > 1 {
			want /= 2
		}
		got := block
		if read(block) > room {
			got = f.fittingBlock(room)
		}
		if got != want {
			t.Fatalf("block of %d, halving makes it %d", got, want)
		}
	})
}

// TestFanoutConserves: whatever the receivers, every accepted one is in exactly
// one record, in the block and partition it belongs to, indexes ascend (the
// decoder insists), and doing it again makes the same bytes.
func TestFanoutConserves(tt *testing.T) {
	tt.Parallel()
	rapid.Check(tt, func(t *rapid.T) {
		parts := rapid.IntRange(1, 40).Draw(t, "partitions")
		users := rapid.SliceOfN(rapid.OneOf(
			rapid.StringMatching(`u[0-9]{1,3}`), rapid.StringMatching(`[a-z"\\é\x00]{0,40}`), rapid.Just(strings.Repeat("x", 129)),
		), 1, 400).Draw(t, "users")
		per := rapid.IntRange(1, 20).Draw(t, "receivers per chunk")
		list, _ := json.Marshal(users)

		r := newRig(tt, Config{BlockReceivers: per})
		r.parts = parts
		m := request.Meta{Caller: "c", Key: "k"}
		a, err := r.Fanout(tt.Context(), m, fanout(string(list)))
		if err != nil {
			t.Fatal(err)
		}
		f := parseFan(t, a)
		want := map[uint32]string{}
		for i, u := range users {
			good := u != "" && len(u) <= 128 && !strings.Contains(u, "\x00") && !slices.Contains(users[:i], u)
			if good {
				want[uint32(i)] = u + "||"
			}
		}
		got := received(t, r.log.records())
		if f.Accepted != len(want) || f.Accepted+f.Count != len(users) || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("answer %s; receivers %v, want %v", a.Body, got, want)
		}
		block := firstBlock(parts, per)
		first := r.log.records()
		for _, rec := range first {
			var e notify.Envelope
			notify.DecodeEnvelope(rec.Value, &e)
			rd := notify.ReadReceivers(e.Receivers)
			for x := (notify.Receiver{}); rd.Next(&x); {
				if x.Index/block != e.Chunk.Block || notify.Partition(x.User, parts) != rec.Partition || rec.Partition != int32(e.Chunk.Partition) {
					t.Fatalf("receiver %d (%s) lies in partition %d block %d", x.Index, x.User, rec.Partition, e.Chunk.Block)
				}
			}
		}
		for k, row := range r.idem.rows { // as if the process had died
			row.Done, row.LeaseUntil = false, 0
			r.idem.rows[k] = row
		}
		if _, err := r.Fanout(tt.Context(), m, fanout(string(list))); err != nil {
			t.Fatal(err)
		}
		for i, rec := range r.log.records()[len(first):] {
			if !bytes.Equal(rec.Value, first[i].Value) || rec.Partition != first[i].Partition {
				t.Fatalf("record %d differs the second time", i)
			}
		}
	})
}
