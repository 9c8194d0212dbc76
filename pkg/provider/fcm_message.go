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

// fcmCall contains what all items of a call share.
//
//	{"message":{"android":{…},"notification":{…},"data":{…,"ntf":"<id>"},"token":"…"}}
type fcmCall struct {
	pushText
	head     []byte // message before the notification
	members  []byte // the members of data, each followed by a comma
	dataSize int    // bytes of data that count for fcmMaxPayload
	path     string
	own      []byte // encoded header fields that only this call has
	id       idText
}

func (f *FCM) newCall(call *notify.Call, now time.Time) (pushCall, error) {
	text, err := parsePush(call.Content)
	if err != nil {
		return nil, err
	}
	trace := traceOf(call)
	c := &fcmCall{pushText: text, path: f.url.EscapedPath(), own: trace.append(nil)}
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
	if k := call.Content.CollapseKey; k != "" {
		b = append(b, `,"collapse_key":`...)
		b = appendQuoted(b, k)
	}
	c.head = append(b, '}')
	for i := range text.data {
		m := &text.data[i]
		// "aps" is for APNs; "ntf" is set below.
		if n := string(m.name); n == "aps" || n == "ntf" {
			continue
		}
		c.members = appendQuoted(c.members, m.name)
		c.members = append(c.members, ':')
		c.members = m.appendValue(c.members, asStrings) // FCM accepts only strings
		c.members = append(c.members, ',')
		c.dataSize += len(m.name) + max(len(m.text), len(m.raw)-2)
	}
	return c, nil
}

// fcmTTL returns how long FCM may keep the message, at most 28 days.
func fcmTTL(expires int64, now time.Time) time.Duration {
	return min(max(0, time.UnixMilli(expires).Sub(now)), fcmMaxTTL)
}

func (c *fcmCall) kind() pushKind { return pushKind{} }

func (c *fcmCall) request(r *h2.Request, it *notify.Item) (err error) {
	r.Path, r.OwnFields = append(r.Path[:0], c.path...), append(r.OwnFields[:0], c.own...)
	r.Body, err = c.appendMessage(r.Body[:0], it)
	return err
}

// appendMessage appends an item's message to dst, which must be empty. After an error, the content
// of the returned slice is useless, but the caller may reuse the memory of the slice.
func (c *fcmCall) appendMessage(dst []byte, it *notify.Item) ([]byte, error) {
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
	b = append(b, c.members...)
	b = append(b, `"ntf":"`...)
	b = c.id.append(b, it.ID())
	b = append(b, `"},"token":`...)
	b = appendQuoted(b, bytes.TrimPrefix(it.Address, []byte("fcm:")))
	b = append(b, '}', '}')
	if size > fcmMaxPayload {
		return b, &notify.Error{Kind: notify.KindTooLarge, Code: "payload_too_large", Msg: "the notification and data of the push have " + strconv.Itoa(size) + " bytes, but FCM accepts at most 4096 bytes"}
	}
	return b, nil
}
