package provider

import (
	"bytes"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider/h2"
)

const (
	fcmMaxPayload = 4096
	fcmMaxTTL     = 28 * 24 * time.Hour
)

// fcmCall is what all items of a call share.
//
//	{"message":{"android":{…},"notification":{…},"data":{…,"ntf":"<id>"},"token":"…"}}
type fcmCall struct {
	title, body Template
	vars        Variables
	head        []byte // up to the notification
	data        []byte // members of data, each with a comma behind it
	dataSize    int
	path        string
	own         []byte // encoded header fields
	id          idText
}

func (f *FCM) newCall(call *notify.Call, now time.Time) (*fcmCall, error) {
	text := call.Content
	if text.Template != "" && text.Title == "" && text.Body == "" {
		return nil, notify.Invalid("template_unsupported", "content.template", "push has no templates at the provider")
	}
	vars, err := SharedVariables(text.Variables)
	if err != nil {
		return nil, err
	}
	data, _, err := parseVariables(nil, nil, text.Data)
	if err != nil {
		return nil, notify.Invalid("bad_data", "content.data", "data is one JSON object, each name once")
	}
	trace := traceOf(call)
	c := &fcmCall{vars: vars, path: f.url.EscapedPath(), own: trace.append(nil), title: ParseTemplate(text.Title, JSON), body: ParseTemplate(text.Body, JSON)}
	priority := "high"
	if call.Category.Bulk() {
		priority = "normal"
	}
	b := append(c.head, `{"message":{"android":{"priority":"`+priority+`"`...)
	if call.Expires > 0 {
		b = append(b, `,"ttl":"`...)
		b = strconv.AppendInt(b, int64(fcmTTL(call.Expires, now)/time.Second), 10)
		b = append(b, `s"`...)
	}
	if text.CollapseKey != "" {
		b = append(b, `,"collapse_key":`...)
		b = appendQuoted(b, text.CollapseKey)
	}
	c.head = append(b, '}')
	for i := range data {
		m := &data[i]
		// "aps" is for the other provider, "ntf" is ours.
		if n := string(m.name); n == "aps" || n == "ntf" {
			continue
		}
		c.data = appendQuoted(c.data, m.name)
		c.data = append(c.data, ':')
		c.data = m.appendValue(c.data, asStrings) // FCM takes strings only
		c.data = append(c.data, ',')
		c.dataSize += len(m.name) + max(len(m.text), len(m.raw)-2)
	}
	return c, nil
}

// fcmTTL is how long FCM may keep the message: never longer than 28 days.
func fcmTTL(expires int64, now time.Time) time.Duration {
	return min(max(0, time.UnixMilli(expires).Sub(now)), fcmMaxTTL)
}

func (c *fcmCall) kind() pushKind { return pushKind{} }

func (c *fcmCall) request(r *h2.Request, it *notify.Item) (err error) {
	r.Path, r.Own = append(r.Path[:0], c.path...), append(r.Own[:0], c.own...)
	r.Body, err = c.message(r.Body[:0], it)
	return err
}

// message appends an item's message to dst, which is empty. With an error the result
// is of no use but for its memory.
func (c *fcmCall) message(dst []byte, it *notify.Item) ([]byte, error) {
	err := error(nil)
	if !c.title.Static() || !c.body.Static() {
		if err = c.vars.SetOwn(it.Variables); err != nil {
			return dst, err
		}
	}
	b := append(dst, c.head...)
	size := len(b)
	open := `,"notification":{`
	if !c.title.Empty() {
		b = append(b, open+`"title":"`...)
		if b, err = c.title.Append(b, &c.vars, fcmMaxPayload); err != nil {
			return b, err
		}
		b = append(b, '"')
		open = ","
	}
	if !c.body.Empty() {
		b = append(b, open+`"body":"`...)
		if b, err = c.body.Append(b, &c.vars, fcmMaxPayload); err != nil {
			return b, err
		}
		b = append(b, '"')
		open = ","
	}
	if open == "," {
		b = append(b, '}')
	}
	size = len(b) - size + c.dataSize
	b = append(b, `,"data":{`...)
	b = append(b, c.data...)
	b = append(b, `"ntf":"`...)
	b = c.id.append(b, it.ID())
	b = append(b, `"},"token":`...)
	b = appendQuoted(b, bytes.TrimPrefix(it.Address, []byte("fcm:")))
	b = append(b, '}', '}')
	if size > fcmMaxPayload {
		return b, &notify.Error{Kind: notify.KindTooLarge, Code: "payload_too_large", Msg: "the push is larger than FCM takes"}
	}
	return b, nil
}
