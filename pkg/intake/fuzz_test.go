package intake

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// refReceiver decodes a receiver with the strict library alone.
type refReceiver struct{ api.Receiver }

func (r *refReceiver) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	switch dec.PeekKind() {
	case '"':
		return json.UnmarshalDecode(dec, &r.UserID)
	case '{':
		if err := json.UnmarshalDecode(dec, &r.Receiver); err != nil {
			return err
		}
		if k := jsontext.Value(r.Variables).Kind(); len(r.Variables) > 0 && k != 'n' && k != '{' {
			return errors.New("variables are no object")
		}
		return nil
	}
	return errors.New("neither string nor object")
}

// reference reads a JSON fan-out the slow way.
func reference(body []byte) (fanHead, []refReceiver, error) {
	var j struct {
		api.Fanout
		Part      *uint32       `json:"part"`
		Receivers []refReceiver `json:"receivers"`
	}
	var h fanHead
	if err := json.Unmarshal(body, &j, request.Strict); err != nil {
		return h, nil, err
	}
	if err := (&fanJSON{Fanout: j.Fanout, Part: j.Part}).toHead(&h); err != nil {
		return h, nil, err
	}
	for _, r := range j.Receivers {
		if request.Nesting(r.Variables)+3 > request.MaxDepth {
			return h, nil, errors.New("too deep")
		}
	}
	if len(j.Receivers) == 0 {
		return h, nil, errors.New("no receivers")
	}
	return h, j.Receivers, nil
}

// outcome is what a fan-out comes to: its receivers and refusals in order.
func outcome(f *splitter) []string {
	out := make([]string, f.index)
	for _, r := range f.rejected {
		out[r.index] = "refused " + r.reason.code
	}
	f.closeBlock()
	for _, c := range f.chunks {
		rd := notify.ReadReceivers(f.cols[c.partition].buf[c.start:c.end])
		for x := (notify.Receiver{}); rd.Next(&x); {
			out[x.Index] = fmt.Sprintf("%q %q %q", x.User, x.Address, x.Variables)
		}
	}
	return out
}

func fanSeeds(f *testing.F) {
	for _, s := range []string{
		string(fanout(`["u1","u2","u1",{"user_id":"u3","address":"apns:x","variables":{"a":[1,"\""]}}]`)),
		string(fanout(`[ {"user_id" : null , "variables" : null} , "\u00e9\ud83d\ude00" , "` + "é" + `" ]`)),
		`{"receivers":["a"],"channel":"push","category":"otp","content":{"title":"t"}}`,
		`{"channel":"push","category":"otp","content":{"title":"t"},"receivers":["a"],"expires_at":"2999-01-01T00:00:00Z"}`,
		`{"channel":"push","category":"otp","content":{"title":"t"},"receivers":["a"],"content":{"variables":{"x":[1]}}}`,
		`{"channel":"sms","category":"otp","content":{"body":"t"},"receivers":[{"address":"+14155550100","user_id":"0123456789abcdef"},"0123456789abcdefg"]}`,
		string(fanout(`["a",]`)), string(fanout(`["a"}`)), string(fanout(`[["a"]]`)), string(fanout("[\"a\x80\"]")), string(fanout("[\"\\x\"]")), `{`, `{"receivers":[`,
		string(fanout(`["a"]`)) + "]}", string(fanout(`[{"user_id":"a","a":1}]`)), string(fanout(`[{"user_id":"a","user\u005fid":"b"}]`)),
	} {
		f.Add([]byte(s))
	}
}

// FuzzFanoutJSON holds the scanner against the strict library: the same bodies
// are accepted, with the same head and the same receivers.
func FuzzFanoutJSON(f *testing.F) {
	fanSeeds(f)
	fast, slow := newSplitter(), newSplitter()
	f.Fuzz(func(t *testing.T, body []byte) {
		const parts, block = 3, 4
		want, receivers, refErr := reference(body)

		var b fanBody
		err := readFanJSON(body, &b)
		if err == nil {
			fast.reset(b.channel, parts, block, 1<<20, 0)
			if err = b.feed(fast); err == nil && fast.index == 0 {
				err = errors.New("no receivers")
			}
		}
		if (err == nil) != (refErr == nil) {
			t.Fatalf("scanner: %v; library: %v", err, refErr)
		}
		if err != nil {
			if e, ok := errors.AsType[*notify.Error](err); ok && (e.Kind != notify.KindInvalid || e.Code == "" || e.Msg == "") {
				t.Fatalf("refusal %+v", e)
			}
			return
		}
		if fmt.Sprintf("%+v", b.fanHead) != fmt.Sprintf("%+v", want) {
			t.Fatalf("head %+v, library %+v", b.fanHead, want)
		}
		slow.reset(b.channel, parts, block, 1<<20, 0)
		for _, r := range receivers {
			vars := []byte(r.Variables)
			if string(vars) == "null" {
				vars = nil
			}
			slow.addReceiver([]byte(r.UserID), []byte(r.Address), vars)
		}
		got, ref := outcome(fast), outcome(slow)
		if fmt.Sprint(got) != fmt.Sprint(ref) {
			t.Fatalf("receivers %q, library %q", got, ref)
		}
	})
}

// FuzzFanoutLines: line by line, the scanner accepts what the library accepts.
func FuzzFanoutLines(f *testing.F) {
	const head = `{"channel":"push","category":"otp","content":{"title":"t"}}` + "\n"
	for _, s := range []string{"\"a\"\n\"b\"\n", "{\"user_id\":\"a\"}\r\n\n\"b\"", "\"a\" \"b\"", "{\"user_id\":\n\"a\"}", "[\"a\"]", "\"a\n\"", "\"a\"\n}"} {
		f.Add([]byte(s))
	}
	fast, slow := newSplitter(), newSplitter()
	f.Fuzz(func(t *testing.T, lines []byte) {
		var refErr error
		slow.reset(notify.Push, 3, 4, 1<<20, 0)
		for line := range bytes.SplitSeq(lines, []byte("\n")) {
			if line = bytes.Trim(line, " \t\r"); len(line) == 0 {
				continue
			}
			var r refReceiver
			if refErr = json.Unmarshal(line, &r, request.Strict); refErr != nil {
				break
			}
			if request.Nesting(r.Variables)+1 > request.MaxDepth {
				refErr = errors.New("too deep")
				break
			}
			if string(r.Variables) == "null" {
				r.Variables = nil
			}
			slow.addReceiver([]byte(r.UserID), []byte(r.Address), r.Variables)
		}
		body := append([]byte(head), lines...)
		var b fanBody
		if err := readFanLines(body, &b); err != nil {
			t.Fatal(err)
		}
		fast.reset(notify.Push, 3, 4, 1<<20, 0)
		err := b.feed(fast)
		if (err == nil) != (refErr == nil) {
			t.Fatalf("scanner: %v; library: %v", err, refErr)
		}
		if err == nil && fmt.Sprint(outcome(fast)) != fmt.Sprint(outcome(slow)) {
			t.Fatalf("receivers differ")
		}
	})
}

// FuzzFanoutProto: no body makes it panic, and what it accepts is what the
// column holds.
func FuzzFanoutProto(f *testing.F) {
	var w notify.ReceiverWriter
	w.Append(notify.Receiver{Index: 0, User: []byte("u1")})
	w.Append(notify.Receiver{Index: 1, User: []byte("user-of-more-than-sixteen"), Address: []byte("fcm:x"), Variables: []byte(`{"a":1}`)})
	f.Add(protoFanout("push", "otp", notify.Content{Title: "t", Data: []byte(`{}`)}, "", 0, 2, w.Bytes()))
	s := newSplitter()
	f.Fuzz(func(t *testing.T, body []byte) {
		var b fanBody
		if readFanProto(body, &b) != nil {
			return
		}
		s.reset(b.channel, 3, 4, 1<<20, 0)
		if b.feed(s) != nil {
			return
		}
		_, count, column, _ := readFanout(body)
		got := outcome(s)
		rd := notify.ReadReceivers(column)
		for x := (notify.Receiver{}); rd.Next(&x); {
			want := fmt.Sprintf("%q %q %q", x.User, x.Address, x.Variables)
			if g := got[x.Index]; g != want && g[:8] != "refused " {
				t.Fatalf("receiver %d: %s, column %s", x.Index, g, want)
			}
		}
		if uint32(len(got)) != count {
			t.Fatalf("%d receivers of %d", len(got), count)
		}
	})
}

// FuzzBatch: array, lines and protobuf never panic, and every item has a result.
func FuzzBatch(f *testing.F) {
	f.Add([]byte("["+singleBody+","+singleBody+"]"), uint8(0))
	f.Add([]byte(singleBody+"\n"+singleBody), uint8(1))
	f.Add(appendProtoNote(nil, "push", "otp", "u", notify.Content{Title: "t"}), uint8(2))
	f.Fuzz(func(t *testing.T, body []byte, form uint8) {
		r := newRig(t, Config{})
		m := request.Meta{Caller: "c", ContentType: []string{request.JSON, request.NDJSON, request.Proto}[form%3]}
		a, err := r.Batch(t.Context(), m, body)
		if err != nil {
			if r.stored() {
				t.Fatal("refused and stored")
			}
			return
		}
		var ans struct {
			Results            []jsontext.Value `json:"results"`
			Accepted, Rejected int
		}
		if err := json.Unmarshal(a.Body, &ans, json.MatchCaseInsensitiveNames(true)); err != nil {
			t.Fatalf("%v in %s", err, a.Body)
		}
		if len(ans.Results) != ans.Accepted+ans.Rejected || len(r.log.records())+len(r.later.ts) != ans.Accepted {
			t.Fatalf("answer %s, %d records", a.Body, len(r.log.records()))
		}
	})
}

// FuzzNote: what the fast reader takes, the library takes, and they read the same.
func FuzzNote(f *testing.F) {
	for _, s := range []string{
		singleBody, single(`"to":{"user_id":"\u00e9","address":null,"variables":{"a":[1]}},"expires_at":"2999-01-01T00:00:00Z"`),
		single(`"scheduled_at":null,"content":{"title":"t","data":{"a":{"b":1}},"variables":null}`), " " + singleBody + "\n", singleBody + "x",
		single(`"to":{"user_id":"a","user_id":"b"}`), single(`"to":null`), single(`"content":{"title":"t","data":{"a":1,"a":1}}`), "{\"channel\":\"push\"\xff}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var fast, slow note
		if !fastNote(body, &fast) {
			return
		}
		if err := slowNote(body, &slow); err != nil {
			t.Fatalf("the library refuses: %v", err)
		}
		if got, want := fmt.Sprintf("%q", fmt.Sprint(fast)), fmt.Sprintf("%q", fmt.Sprint(slow)); got != want {
			t.Fatalf("read %s, library %s", got, want)
		}
	})
}

// The fast reader is worth its lines only if it takes what callers send.
func TestFastNoteTakes(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		singleBody,
		single(`"to":{"user_id":"u","address":"fcm:x","variables":{"a":1}},"expires_at":"2999-01-01T00:00:00Z","scheduled_at":null`),
		`{ "channel" : "email", "category" : "digest", "to" : { "user_id" : "u" }, "content" : { "title" : "Grüße", "html" : "<a href=\"x\">", "from" : "a@b.c" } }`,
	} {
		if !fastNote([]byte(s), new(note)) {
			t.Errorf("not taken: %s", s)
		}
	}
}
