package provider

import (
	"bytes"
	"crypto/sha256"
	enchex "encoding/hex"
	"math"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider/h2"
)

// Limits of APNs, in bytes.
const (
	apnsMaxPayload  = 4096
	apnsMaxCollapse = 64
)

// apnsStore is how long APNs keeps a push without expiry if the device is off. It is the longest
// time that APNs allows.
const apnsStore = 30 * 24 * time.Hour

// apnsCall contains what all items of a call share: header fields and parts of the payload.
//
//	{"aps":{"alert":{"title":"…","body":"…"},…},…data…,"ntf":"<id>"}
type apnsCall struct {
	pushKind pushKind
	path     string // path before the device token
	own      []byte // encoded header fields that only this call has

	pushText
	prefix  []byte // payload before the value of the title or, in a static payload, before the id
	between []byte // payload between the values of title and body
	suffix  []byte // payload after the last template, before the id
	static  bool
	id      idText
}

var (
	agentHeader = []string{"notifyd"}
	jsonHeader  = []string{"application/json"}
)

func (a *APNs) newCall(call *notify.Call, now time.Time) (pushCall, error) {
	text, err := parsePush(call.Content)
	if err != nil {
		return nil, err
	}
	c := &apnsCall{
		pushText: text, pushKind: pushKind{"alert", "10"}, path: a.base.EscapedPath() + "/3/device/",
	}
	if call.Category.Bulk() {
		c.pushKind.priority = "5" // the device may delay the push to save power
	}
	alert := !text.title.Empty() || !text.body.Empty()
	if !alert {
		c.pushKind = pushKind{"background", "5"} // APNs allows no other priority for background
	}
	c.own = h2.AppendField(c.own, "apns-expiration", strconv.FormatInt(apnsExpiration(call.Expires, now), 10))
	if k := call.Content.CollapseKey; k != "" {
		c.own = h2.AppendField(c.own, "apns-collapse-id", collapseID(k))
	}
	trace := traceOf(call)
	c.own = trace.append(c.own)
	err = c.render(alert)
	return c, err
}

func (c *apnsCall) render(alert bool) error {
	b := []byte(`{"aps":{`)
	at := &c.prefix
	next := func(nextPart *[]byte) { *at, b, at = b, nil, nextPart }
	if alert {
		b = append(b, `"alert":{`...)
		if !c.title.Empty() {
			b = append(b, `"title":"`...)
			next(&c.between)
			b = append(b, '"')
			if !c.body.Empty() {
				b = append(b, ',')
			}
		} else {
			next(&c.between)
		}
		if !c.body.Empty() {
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
	// Merge the members of "aps" in the content's data (sound, badge, thread-id…) into this "aps".
	for _, m := range c.data {
		if string(m.name) != "aps" {
			continue
		}
		own, _, err := parseVariables(nil, nil, m.raw)
		if err != nil {
			return notify.Invalid("bad_data", "content.data.aps", "must be a JSON object")
		}
		for _, o := range own {
			if n := string(o.name); n != "alert" && n != "content-available" {
				b = appendMember(b, &o)
			}
		}
	}
	b = append(b, '}')
	for _, m := range c.data {
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

func (c *apnsCall) kind() pushKind { return c.pushKind }

func (c *apnsCall) request(r *h2.Request, it *notify.Item) (err error) {
	address := apnsToken(it.Address)
	if address == nil {
		return errAPNsAddress
	}
	if r.Body, err = c.appendPayload(r.Body[:0], it); err != nil {
		return err
	}
	r.Path = append(append(r.Path[:0], c.path...), address...)
	var id [36]byte
	putUUID(&id, notify.AttemptID(it.ID(), it.Key.Epoch, int(it.Addr)))
	r.OwnFields = h2.AppendField(append(r.OwnFields[:0], c.own...), "apns-id", id[:])
	return nil
}

// appendPayload appends an item's payload to dst, which must be empty. After an error, the content
// of the returned slice is useless, but the caller may reuse the memory of the slice.
func (c *apnsCall) appendPayload(dst []byte, it *notify.Item) ([]byte, error) {
	b := append(dst, c.prefix...)
	if !c.static {
		err := c.vars.SetOwn(it.Variables)
		if err != nil {
			return b, err
		}
		if b, err = c.title.Append(b, &c.vars, apnsMaxPayload); err != nil {
			return b, err
		}
		b = append(b, c.between...)
		if b, err = c.body.Append(b, &c.vars, apnsMaxPayload); err != nil {
			return b, err
		}
		b = append(b, c.suffix...)
	}
	b = c.id.append(b, it.ID())
	b = append(b, `"}`...)
	if len(b) > apnsMaxPayload {
		return b, &notify.Error{Kind: notify.KindTooLarge, Code: "payload_too_large", Msg: "the push has " + strconv.Itoa(len(b)) + " bytes, but APNs accepts at most 4096 bytes"}
	}
	return b, nil
}

// apnsExpiration returns the apns-expiration header, in seconds since 1970. It never returns 0:
// with 0, APNs would try once and not store the push.
func apnsExpiration(expires int64, now time.Time) int64 {
	if expires > 0 {
		return max(1, expires/1000)
	}
	return now.Add(apnsStore).Unix()
}

// collapseID converts a key to a form that APNs allows: at most 64 bytes that a header can carry. A
// key that does not fit is hashed.
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

// apnsToken returns the device token of an address, or nil if the address is not valid. A token
// consists of letters and digits only, so that it is safe in a path.
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

var errAPNsAddress = notify.Invalid("bad_address", "address", "the device token must consist of letters and digits")

func putUUID(b *[36]byte, id [16]byte) {
	enchex.Encode(b[0:8], id[0:4])
	enchex.Encode(b[9:13], id[4:6])
	enchex.Encode(b[14:18], id[6:8])
	enchex.Encode(b[19:23], id[8:10])
	enchex.Encode(b[24:36], id[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
}
