package provider

import (
	"bytes"
	"crypto/sha256"
	enchex "encoding/hex"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Limits of APNs, in bytes.
const (
	apnsMaxPayload     = 4096
	apnsMaxVoIPPayload = 5120
	apnsMaxCollapse    = 64
)

// apnsCall is what all items of a call share: the headers, and the payload up
// to what differs.
//
//	{"aps":{"alert":{"title":"…","body":"…"},…},…data…,"ntf":"<id>"}
type apnsCall struct {
	topic, pushType, priority, expiration, collapse, agent, contentType []string

	title, body Template
	vars        Variables
	prefix      []byte // up to the title's or, of a static payload, the id's value
	between     []byte // after the title's value
	suffix      []byte // after the last template, up to the id's value
	static      bool
	max         int
	trace       traceHeader
}

var (
	agentHeader = []string{"notifyd"}
	jsonHeader  = []string{"application/json"}
)

func (a *APNs) newCall(call *notify.Call, now time.Time) (*apnsCall, error) {
	text := call.Content
	if text.Template != "" && text.Title == "" && text.Body == "" {
		return nil, notify.Invalid("template_unsupported", "content.template", "push has no templates at the provider")
	}
	vars, err := SharedVariables(text.Variables)
	if err != nil {
		return nil, err
	}
	c := &apnsCall{
		vars: vars, title: ParseTemplate(text.Title, JSON), body: ParseTemplate(text.Body, JSON),
		agent: agentHeader, contentType: jsonHeader,
		topic: []string{a.cfg.Topic}, pushType: []string{a.cfg.PushType}, priority: []string{"10"},
		expiration: []string{strconv.FormatInt(apnsExpiration(call.Expires, a.cfg.Store, now), 10)},
		max:        apnsMaxPayload,
		trace:      traceOf(call),
	}
	if a.cfg.PushType == "voip" {
		c.max = apnsMaxVoIPPayload
	}
	if call.Category.Bulk() {
		c.priority = []string{"5"} // lets the device save power
	}
	alert := text.Title != "" || text.Body != ""
	if !alert && a.cfg.PushType == "alert" {
		c.pushType, c.priority = []string{"background"}, []string{"5"} // the only one APNs allows
	}
	if text.CollapseKey != "" {
		c.collapse = []string{collapseID(text.CollapseKey)}
	}
	err = c.render(text, alert)
	return c, err
}

func (c *apnsCall) render(text *notify.Content, alert bool) error {
	data, _, err := parseVariables(nil, nil, text.Data)
	if err != nil {
		return notify.Invalid("bad_data", "content.data", "data is one JSON object, each name once")
	}
	b := []byte(`{"aps":{`)
	at := &c.prefix
	next := func(nextPart *[]byte) { *at, b, at = b, nil, nextPart }
	if alert {
		b = append(b, `"alert":{`...)
		if text.Title != "" {
			b = append(b, `"title":"`...)
			next(&c.between)
			b = append(b, '"')
			if text.Body != "" {
				b = append(b, ',')
			}
		} else {
			next(&c.between)
		}
		if text.Body != "" {
			b = append(b, `"body":"`...)
			next(&c.suffix)
			b = append(b, '"')
		} else {
			next(&c.suffix)
		}
		b = append(b, '}')
	} else {
		b = append(b, `"content-available":1`...)
		next(&c.between)
		next(&c.suffix)
	}
	// Members of the data's own "aps" (sound, badge, thread-id…) join ours.
	for _, m := range data {
		if string(m.name) != "aps" {
			continue
		}
		own, _, err := parseVariables(nil, nil, m.raw)
		if err != nil {
			return notify.Invalid("bad_data", "content.data.aps", "aps is an object")
		}
		for _, o := range own {
			if n := string(o.name); n != "alert" && n != "content-available" {
				b = appendMember(b, &o)
			}
		}
	}
	b = append(b, '}')
	for _, m := range data {
		if n := string(m.name); n != "aps" && n != "ntf" {
			b = appendMember(b, &m)
		}
	}
	c.suffix = append(b, `,"ntf":"`...)

	c.static = c.title.Static() && c.body.Static()
	if c.static {
		var none Variables
		all := bytes.Clone(c.prefix)
		all, _ = c.title.Append(all, &none, math.MaxInt)
		all = append(all, c.between...)
		all, _ = c.body.Append(all, &none, math.MaxInt)
		c.prefix = append(all, c.suffix...)
	}
	return nil
}

func appendMember(b []byte, m *variable) []byte {
	b = append(b, ',')
	b = appendQuoted(b, m.name)
	b = append(b, ':')
	return append(b, m.raw...)
}

// apnsWriter renders items one after the other, in one buffer.
type apnsWriter struct {
	call *apnsCall
	vars Variables
	buf  []byte
	id   idText
}

// payload renders an item. The result is valid until the next one.
func (w *apnsWriter) payload(it *notify.Item) (b []byte, err error) {
	w.buf, err = w.append(w.buf[:0], it)
	return w.buf, err
}

// append renders an item into dst, which is empty. With an error the result is
// of no use but for its memory.
func (w *apnsWriter) append(dst []byte, it *notify.Item) ([]byte, error) {
	c := w.call
	b := append(dst, c.prefix...)
	if !c.static {
		err := w.vars.SetOwn(it.Variables)
		if err != nil {
			return b, err
		}
		if b, err = c.title.Append(b, &w.vars, c.max); err != nil {
			return b, err
		}
		b = append(b, c.between...)
		if b, err = c.body.Append(b, &w.vars, c.max); err != nil {
			return b, err
		}
		b = append(b, c.suffix...)
	}
	b = w.id.append(b, it.ID())
	b = append(b, `"}`...)
	if len(b) > c.max {
		return b, &notify.Error{Kind: notify.KindTooLarge, Code: "payload_too_large", Msg: "the push is larger than APNs takes"}
	}
	return b, nil
}

// header makes the headers of one request. The values all items have in common
// are shared.
func (c *apnsCall) header(it *notify.Item, tok *token) http.Header {
	h := make(http.Header, 10)
	h["Authorization"] = tok.header
	h["Apns-Topic"] = c.topic
	h["Apns-Push-Type"] = c.pushType
	h["Apns-Priority"] = c.priority
	h["Apns-Expiration"] = c.expiration
	h["Apns-Id"] = []string{uuid(notify.AttemptID(it.ID(), it.Key.Epoch, int(it.Addr)))}
	h["Content-Type"] = c.contentType
	h["User-Agent"] = c.agent
	if c.collapse != nil {
		h["Apns-Collapse-Id"] = c.collapse
	}
	c.trace.put(h)
	return h
}

// apnsExpiration is the apns-expiration header, in seconds since 1970. Zero has
// a meaning of its own there: try once, store nothing.
func apnsExpiration(expires int64, store time.Duration, now time.Time) int64 {
	switch {
	case expires > 0:
		return max(1, expires/1000)
	case store < 0:
		return 0
	}
	return now.Add(store).Unix()
}

// collapseID fits any key into what APNs allows: 64 bytes that a header can
// carry.
func collapseID(key string) string {
	ok := len(key) <= apnsMaxCollapse
	for i := 0; ok && i < len(key); i++ {
		ok = key[i] > ' ' && key[i] < 0x7f
	}
	if ok {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return enchex.EncodeToString(sum[:])
}

// apnsToken is the device token of an address, or nil where it could not be one.
// It is letters and digits of any length, so that it is safe in a path.
func apnsToken(address []byte) []byte {
	address = bytes.TrimPrefix(address, []byte("apns:"))
	for _, c := range address {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z') {
			return nil
		}
	}
	if len(address) == 0 {
		return nil
	}
	return address
}

var badAPNsAddress = notify.Result{Class: notify.ClassPermanent, Code: "bad_address", Provider: "apns"}

func uuid(id [16]byte) string {
	var b [36]byte
	putUUID(&b, id)
	return string(b[:])
}

func putUUID(b *[36]byte, id [16]byte) {
	enchex.Encode(b[0:8], id[0:4])
	enchex.Encode(b[9:13], id[4:6])
	enchex.Encode(b[14:18], id[6:8])
	enchex.Encode(b[19:23], id[8:10])
	enchex.Encode(b[24:36], id[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
}
