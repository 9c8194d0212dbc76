package provider

import (
	"bytes"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
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
	trace       traceHeader
}

func newFCMCall(call *notify.Call, now time.Time) (*fcmCall, error) {
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
	c := &fcmCall{vars: vars, trace: traceOf(call), title: ParseTemplate(text.Title, JSON), body: ParseTemplate(text.Body, JSON)}
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

type fcmWriter struct {
	call *fcmCall
	vars Variables
	buf  []byte
	id   idText
}

// message renders an item. The result is valid until the next one.
func (w *fcmWriter) message(it *notify.Item) ([]byte, error) {
	c := w.call
	err := error(nil)
	if !c.title.Static() || !c.body.Static() {
		if err = w.vars.SetOwn(it.Variables); err != nil {
			return nil, err
		}
	}
	b := append(w.buf[:0], c.head...)
	size := len(b)
	open := `,"notification":{`
	if !c.title.Empty() {
		b = append(b, open+`"title":"`...)
		if b, err = c.title.Append(b, &w.vars, fcmMaxPayload); err != nil {
			return nil, err
		}
		b = append(b, '"')
		open = ","
	}
	if !c.body.Empty() {
		b = append(b, open+`"body":"`...)
		if b, err = c.body.Append(b, &w.vars, fcmMaxPayload); err != nil {
			return nil, err
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
	b = w.id.append(b, it.ID())
	b = append(b, `"},"token":`...)
	b = appendQuoted(b, bytes.TrimPrefix(it.Address, []byte("fcm:")))
	b = append(b, '}', '}')
	w.buf = b
	if size > fcmMaxPayload {
		return nil, &notify.Error{Kind: notify.KindTooLarge, Code: "payload_too_large", Msg: "the push is larger than FCM takes"}
	}
	return b, nil
}
