package intake

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/request"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/notifyd/notifyd/pkg/notify"
)

// try sends the same notification in every form a body has, beside a good one
// where there can be two, and checks that each refuses it by code, field and
// rule, and stores nothing of it. A code of "" is for what all forms take.
func try(t *testing.T, ch notify.Channel, to notify.Receiver, c notify.Content, code, field string) {
	t.Helper()
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	members := func(pairs ...string) string {
		var out []string
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i+1] != `""` && pairs[i+1] != "" {
				out = append(out, quote(pairs[i])+":"+pairs[i+1])
			}
		}
		return "{" + strings.Join(out, ",") + "}"
	}
	content := members("template", quote(c.Template), "title", quote(c.Title), "body", quote(c.Body), "data", string(c.Data),
		"collapse_key", quote(c.CollapseKey), "from", quote(c.From))
	receiver := members("user_id", quote(string(to.User)), "address", quote(string(to.Address)))
	terms := []string{"channel", quote(ch.String()), "category", `"otp"`, "content", content}
	good := members(append(terms[:4:4], "to", `{"user_id":"good"}`, "content", `{"title":"t","body":"b"}`)...)
	if ch == notify.SMS {
		good = strings.Replace(good, `"title":"t",`, "", 1)
	}
	goodContent := notify.Content{Title: "t", Body: "b"}
	if ch == notify.SMS {
		goodContent.Title = ""
	}
	one := members(append(terms, "to", receiver)...)
	var column notify.ReceiverWriter
	column.Append(notify.Receiver{User: []byte("good")})
	column.Append(notify.Receiver{Index: 1, User: to.User, Address: to.Address})
	var item []byte
	item = appendField(item, 1, ch.String())
	item = appendField(item, 2, "otp")
	item = appendField(item, 3, string(to.User))
	item = appendField(item, 4, string(to.Address))
	item = appendField(item, 5, string(notify.AppendContent(nil, &c)))
	protoBatch := protowire.AppendBytes(protowire.AppendTag(appendProtoNote(nil, ch.String(), "otp", "good", goodContent), 1, protowire.BytesType), item)

	of := func(where string) bool { return code != "" && strings.HasPrefix(field, where) }
	for _, form := range []struct{ name, media, body string }{
		{"single", request.JSON, one},
		{"batch", request.JSON, "[" + good + "," + one + "]"},
		{"batch", request.NDJSON, good + "\n" + one + "\n"},
		{"batch", request.Proto, string(protoBatch)},
		{"fanout", request.JSON, members(append(terms, "receivers", `["good",`+receiver+`]`)...)},
		{"fanout", request.NDJSON, members(terms...) + "\n\"good\"\n" + receiver + "\n"},
		{"fanout", request.Proto, string(protoFanout(ch.String(), "otp", c, "", 0, 2, column.Bytes()))},
	} {
		r := newRig(t, Config{})
		m := request.Meta{Caller: "c", ContentType: form.media}
		name := form.name + " " + form.media
		switch form.name {
		case "single":
			_, err := r.Single(t.Context(), m, []byte(form.body))
			if code == "" && err != nil {
				t.Errorf("%s: %v", name, err)
			} else if code != "" {
				refused(t, err, notify.KindInvalid, code, field)
			}
			if err != nil && r.stored() {
				t.Errorf("%s: refused and stored", name)
			}
		case "batch":
			a, err := r.Batch(t.Context(), m, []byte(form.body))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			want, records := fmt.Sprintf(`{"error":{"code":%q,"field":%s,"detail":"`, code, quote(field)), 1
			if code == "" {
				want, records = `"accepted":2,"rejected":0}`, 2
			}
			if !strings.Contains(string(a.Body), want) || len(r.log.records()) != records {
				t.Errorf("%s: %s\nwant %s and %d records", name, a.Body, want, records)
			}
		case "fanout":
			a, err := r.Fanout(t.Context(), m, []byte(form.body))
			if of("content.") {
				refused(t, err, notify.KindInvalid, code, field)
				if r.stored() {
					t.Errorf("%s: refused and stored", name)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			f := parseFan(t, a)
			if code == "" {
				if f.Accepted != 2 {
					t.Errorf("%s: %s", name, a.Body)
				}
				continue
			}
			want := strings.TrimPrefix(field, "to.") + ": "
			if f.Accepted != 1 || len(f.Rejected) != 1 || f.Rejected[0].Index != 1 || f.Rejected[0].Code != code || !strings.HasPrefix(f.Rejected[0].Detail, want) || len(f.Rejected[0].Detail) < len(want)+10 {
				t.Errorf("%s: %s", name, a.Body)
			}
		}
	}
}

// What a provider would refuse is refused at intake, in every form.
func TestRefusedBeforeAProvider(t *testing.T) {
	t.Parallel()
	user := func(id string) notify.Receiver { return notify.Receiver{User: []byte(id)} }
	at := func(address string) notify.Receiver {
		return notify.Receiver{User: []byte("u"), Address: []byte(address)}
	}
	text := map[notify.Channel]notify.Content{
		notify.Push: {Title: "t"}, notify.SMS: {Body: "b"}, notify.Email: {Title: "t", Body: "b"},
	}
	for _, id := range []string{".", "..", "/", "a\u202eb", "\u2066a", "a\u0085", "a\u009b31m", "a\x7f", "\x1b[2J", "user-of-more-than-sixteen\u202e"} {
		try(t, notify.Push, user(id), text[notify.Push], "bad_user_id", "to.user_id")
	}
	for _, id := range []string{"...", "//", ".a", "a.", "a/b", "%2e%2e", "é", "می\u200cخواهم", "user-of-more-than-sixteen"} {
		try(t, notify.Push, user(id), text[notify.Push], "", "")
	}
	for ch, list := range map[notify.Channel][]string{
		notify.Push: {
			"apns:../../x", "apns:", "apns:xyz", "apns:0a1b?c", "apns:0a 1b", "apns:0a%2f", "apns:é", "0a1b", "APNS:0a1b",
			"fcm:", "fcm:a/b", "fcm:a b", "fcm:a?b", "fcm:a\"b", "fcm:a%2fb", "fcm:é", "sms:+14155550100",
		},
		notify.SMS: {"14155550100", "+0415555", "+1", "+493012", "+1234567890123456", "+1 415 555 0100", "+1415555010a", "tel:+14155550100", "+١٢٣٤"},
		notify.Email: {
			"ann", "@example.com", "ann@", "a@b@c", ".ann@example.com", "ann.@example.com", "a..n@example.com", "ann@-example.com", "ann@example-.com",
			"ann@example..com", "ann@.com", "ann@exa_mple.com", "ann@[127.0.0.1]", `"ann"@example.com`, "Ann <ann@example.com>", "ann@example.com\r\nBcc: x@y.z",
			"an\u202en@example.com", "ann@exam\u200bple.com", strings.Repeat("a", 65) + "@example.com", "ann@" + strings.Repeat("a", 64) + ".com",
			strings.Repeat("a", 60) + "@" + strings.Repeat(strings.Repeat("b", 48)+".", 4) + "com", "ann@example.com/../x y",
		},
	} {
		for _, a := range list {
			try(t, ch, at(a), text[ch], "bad_address", "to.address")
		}
	}
	for a, ch := range map[string]notify.Channel{
		"apns:" + strings.Repeat("0aF", 50): notify.Push, "fcm:f0-_.:APA91bX": notify.Push, "+14155550100": notify.SMS, "+4930123": notify.SMS,
		"ann@example.com": notify.Email, "a+b_c%d@sub.example.co": notify.Email, "o'neil@localhost": notify.Email, "ünï@müller.example": notify.Email,
	} {
		try(t, ch, at(a), text[ch], "", "")
	}

	change := func(ch notify.Channel, fn func(*notify.Content)) notify.Content {
		c := text[ch]
		fn(&c)
		return c
	}
	for data, want := range map[string][2]string{
		`{"aps":1}`:                          {"wrong_type", "content.data.aps"},
		`{"a":1,"aps":null}`:                 {"wrong_type", "content.data.aps"},
		`{ "aps" : [ ] }`:                    {"wrong_type", "content.data.aps"},
		`{"aps":{"sound":"x","alert":"hi"}}`: {"reserved_name", "content.data.aps.alert"},
		`{"aps":{"content-available":1}}`:    {"reserved_name", "content.data.aps.content-available"},
		`{"\u0061ps":{"alert":{}}}`:          {"reserved_name", "content.data.aps.alert"},
		`{"x":{"y":"}"},"ntf":"ntf_1"}`:      {"reserved_name", "content.data.ntf"},
		`{"from":"x"}`:                       {"reserved_name", "content.data.from"},
		`{"message_type":"x"}`:               {"reserved_name", "content.data.message_type"},
		`{"gcm.n":"x"}`:                      {"reserved_name", "content.data.gcm.n"},
		`{"google.x":1}`:                     {"reserved_name", "content.data.google.x"},
		`{}`:                                 {},
		`{"aps":{"sound":"x","badge":1},"b":[{"aps":1,"from":"x"}],"googles":"ntf","from_":{}}`: {},
	} {
		try(t, notify.Push, user("u"), change(notify.Push, func(c *notify.Content) { c.Data = []byte(data) }), want[0], want[1])
	}

	from := func(ch notify.Channel, list []string, code, field string) {
		for _, f := range list {
			try(t, ch, user("u"), change(ch, func(c *notify.Content) { c.From = f }), code, field)
		}
	}
	from(notify.SMS, []string{"+14155550100", "12345", "Shop", "A & B-Store", "MG0123456789abcdef0123456789abcdef"}, "", "")
	from(notify.SMS, []string{"12", "123456789", "a.b", "TwelveLetter", " Shop", "Größe", "MG0123456789abcdef0123456789abcdeg", "+-", "ann@example.com", "+0123"}, "bad_from", "content.from")
	from(notify.Email, []string{"shop@example.com", "The Shop <shop@example.com>", `"Shop, Inc." <shop@example.com>`}, "", "")
	from(notify.Email, []string{"Shop", "shop@", "<shop@example.com", "shop@example.com, other@example.com", "a@b@c", "=?utf-8?q?=E2=80=AE?= <shop@example.com>", "x <shop@[1.2.3.4]>"}, "bad_from", "content.from")
	from(notify.Email, []string{"Shop\r\nBcc: x@y.z <shop@example.com>", "S\u202ehop <shop@example.com>"}, "control_character", "content.from")
	try(t, notify.Push, user("u"), change(notify.Push, func(c *notify.Content) { c.CollapseKey = "a\u009b" }), "control_character", "content.collapse_key")
	try(t, notify.Email, user("u"), change(notify.Email, func(c *notify.Content) { c.Template = "d-\u2067x" }), "control_character", "content.template")
	try(t, notify.Push, user("u"), change(notify.Push, func(c *notify.Content) { c.Template = "t1" }), "not_for_channel", "content.template")
}
