package intake

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// note is one notification for one receiver. Its slices and strings may be parts of the request's
// body.
type note struct {
	terms
	user, address, vars []byte
}

// decodeNote decodes the body of a single notification, or one item of a batch.
func decodeNote(b []byte, n *note) error {
	if fastNote(b, n) {
		return nil
	}
	return slowNote(b, n)
}

func slowNote(b []byte, n *note) error {
	var j api.Notification
	if err := request.Decode(b, &j); err != nil {
		return err
	}
	if err := n.readTerms(j.Channel, j.Category, &j.Content, j.ScheduledAt, j.ExpiresAt); err != nil {
		return err
	}
	vars, err := checkObject(j.To.Variables, "to.variables", 2)
	if err != nil {
		return err
	}
	n.user, n.address, n.vars = []byte(j.To.UserID), []byte(j.To.Address), vars
	return nil
}

func (t *terms) readTerms(channel, category string, c *api.Content, scheduled, expires *time.Time) (err error) {
	if t.channel, t.category, err = parseLane(channel, category); err != nil {
		return err
	}
	t.content = notify.Content{Template: c.Template, Title: c.Title, Body: c.Body, HTML: c.HTML, CollapseKey: c.CollapseKey, From: c.From}
	if t.content.Variables, err = checkObject(c.Variables, "content.variables", 2); err != nil {
		return err
	}
	if t.content.Data, err = checkObject(c.Data, "content.data", 2); err != nil {
		return err
	}
	t.scheduled, t.expires = notBefore(scheduled), millis(expires)
	return nil
}

func parseLane(channel, category string) (notify.Channel, notify.Category, error) {
	if channel == "" {
		return 0, 0, invalid("required", "channel", "must be push, sms or email")
	}
	ch, ok := notify.ParseChannel(channel)
	if !ok {
		return 0, 0, invalid("unknown_channel", "channel", "must be push, sms or email")
	}
	if category == "" {
		return 0, 0, invalid("required", "category", "must be otp, alert, transactional, marketing or digest")
	}
	cat, ok := notify.ParseCategory(category)
	if !ok {
		return 0, 0, invalid("unknown_category", "category", "must be otp, alert, transactional, marketing or digest")
	}
	return ch, cat, nil
}

// millis returns t in ms since 1970, and 0 for nil. If t is the first millisecond of 1970, it
// returns 1, because 0 means no time. The difference does not matter: both times are long past.
func millis(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	if ms := t.UnixMilli(); ms != 0 {
		return ms
	}
	return 1
}

// notBefore is like the function millis, but rounds up to the next millisecond. It is for a time
// before which nothing may happen.
func notBefore(t *time.Time) int64 {
	ms := millis(t)
	if t != nil && t.After(time.UnixMilli(ms)) {
		ms++
	}
	return ms
}

// checkObject returns b if it is a JSON object that is not nested too deep, and nil if it is
// empty or null. The parameter depth is the number of values that enclose b.
func checkObject(b []byte, field string, depth int) ([]byte, error) {
	switch v := jsontext.Value(b); {
	case len(v) == 0 || v.Kind() == 'n':
		return nil, nil
	case v.Kind() != '{':
		return nil, invalid("wrong_type", field, "must be an object")
	case request.Nesting(v)+depth > request.MaxDepth:
		return nil, tooDeep(field)
	}
	return b, nil
}

func tooDeep(field string) error {
	return invalid("too_deep", field, fmt.Sprintf("the body must have at most %d levels of nesting", request.MaxDepth))
}

// The protobuf bodies of envelope.proto are decoded by hand, as strictly as JSON. The decoder
// refuses unknown fields, repeated singular fields and invalid UTF-8. Generated code would, for
// example, skip an unknown field, and let a repeated field overwrite the earlier one. The decoder
// needs no allocation for a field.

// protoField is one field of a protobuf message: its name, and the variable for its value. One of
// the three pointers is set.
type protoField struct {
	name string
	text *string // UTF-8
	raw  *[]byte // not checked here; the code that uses raw checks it
	num  *uint64
}

// path returns the prefix, followed by a copy of the field's name. If errors used the name
// itself, the compiler would move all variables of the fields to the heap (3 allocations an
// item).
func (f *protoField) path(prefix string) string { return prefix + strings.Clone(f.name) }

// readMessage decodes b into the variables of the given fields. The index of a field in the slice
// is its field number minus 1. The parameter prefix is the path of the message in errors.
func readMessage(b []byte, prefix string, fields []protoField) error {
	var had uint32
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return badProto(prefix, "the tag of a field is damaged")
		}
		b = b[n:]
		if num < 1 || int(num) > len(fields) {
			return invalid("unknown_field", fmt.Sprintf("%s#%d", prefix, num), "there is no field with this number")
		}
		f := &fields[num-1]
		if had&(1<<num) != 0 {
			return invalid("duplicate_key", f.path(prefix), "the field is given twice")
		}
		had |= 1 << num
		want := protowire.BytesType
		if f.num != nil {
			want = protowire.VarintType
		}
		if typ != want {
			return invalid("wrong_type", f.path(prefix), fmt.Sprintf("has the protobuf wire type %d, but must have %d", typ, want))
		}
		if f.num != nil {
			if *f.num, n = protowire.ConsumeVarint(b); n < 0 {
				return badProto(f.path(prefix), "the number is damaged")
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return badProto(f.path(prefix), "the field ends too early")
		}
		b = b[n:]
		if f.raw != nil {
			*f.raw = v
			continue
		}
		if !utf8.Valid(v) {
			return invalid("bad_utf8", f.path(prefix), "must be valid UTF-8")
		}
		*f.text = alias(v)
	}
	return nil
}

func badProto(field, msg string) error { return invalid("bad_protobuf", field, msg) }

// alias returns b as a string without a copy. That is safe because a body does not change while its
// request is processed, and records copy the bytes that they keep.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func readContent(b []byte, prefix string, c *notify.Content) error {
	err := readMessage(b, prefix, []protoField{
		{name: "template", text: &c.Template},
		{name: "title", text: &c.Title},
		{name: "body", text: &c.Body},
		{name: "html", text: &c.HTML},
		{name: "variables", raw: &c.Variables},
		{name: "data", raw: &c.Data},
		{name: "collapse_key", text: &c.CollapseKey},
		{name: "from", text: &c.From},
	})
	if err != nil {
		return err
	}
	if len(c.Variables) > 0 {
		if c.Variables, err = objectBytes(c.Variables, prefix+"variables", 0); err != nil {
			return err
		}
	}
	if len(c.Data) > 0 {
		c.Data, err = objectBytes(c.Data, prefix+"data", 0)
	}
	return err
}

// objectBytes checks a JSON object that is the value of a protobuf field of type bytes. It
// returns nil if the value is empty.
func objectBytes(v []byte, field string, depth int) ([]byte, error) {
	if len(v) == 0 {
		return nil, nil
	}
	if err := checkValue(v); err != nil {
		return nil, prefixField(field, err)
	}
	return checkObject(v, field, depth)
}

// readNote decodes a notify.v1.Notification.
func readNote(b []byte, n *note) error {
	var channel, category string
	var content, user, address []byte
	var expires, scheduled uint64
	err := readMessage(b, "", []protoField{
		{name: "channel", text: &channel},
		{name: "category", text: &category},
		{name: "user_id", raw: &user},
		{name: "address", raw: &address},
		{name: "content", raw: &content},
		{name: "expires_ms", num: &expires},
		{name: "scheduled_ms", num: &scheduled},
	})
	if err != nil {
		return err
	}
	*n = note{}
	if n.channel, n.category, err = parseLane(channel, category); err != nil {
		return err
	}
	if !utf8.Valid(user) || !utf8.Valid(address) {
		return invalid("bad_utf8", "user_id", "user_id and address must be valid UTF-8")
	}
	n.user, n.address = user, address
	n.expires, n.scheduled = int64(expires), int64(scheduled)
	return readContent(content, "content.", &n.content)
}

// fanHead contains the fields of a fan-out other than its receivers.
type fanHead struct {
	terms
	campaign string
	part     uint32
}

// readFanout decodes a notify.v1.Fanout. The result column contains its receivers in packed form.
// They are not checked yet.
func readFanout(b []byte) (h fanHead, count uint32, column []byte, err error) {
	var channel, category string
	var content []byte
	var expires, scheduled, part, n uint64
	err = readMessage(b, "", []protoField{
		{name: "channel", text: &channel},
		{name: "category", text: &category},
		{name: "content", raw: &content},
		{name: "expires_ms", num: &expires},
		{name: "scheduled_ms", num: &scheduled},
		{name: "campaign", text: &h.campaign},
		{name: "part", num: &part},
		{name: "count", num: &n},
		{name: "receivers", raw: &column},
	})
	if err != nil {
		return h, 0, nil, err
	}
	if h.channel, h.category, err = parseLane(channel, category); err != nil {
		return h, 0, nil, err
	}
	switch {
	case part > 1<<32-1:
		return h, 0, nil, invalid("wrong_type", "part", "must be a number from 0 to 4294967295")
	case n > notify.MaxIndex:
		return h, 0, nil, invalid("wrong_type", "count", fmt.Sprintf("must be a number from 0 to %d", notify.MaxIndex))
	}
	h.expires, h.scheduled, h.part = int64(expires), int64(scheduled), uint32(part)
	if err = checkCampaign(h.campaign, h.part != 0); err != nil {
		return h, 0, nil, err
	}
	err = readContent(content, "content.", &h.content)
	return h, uint32(n), column, err
}
