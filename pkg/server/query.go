package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// query contains a request's parameters by name. readQuery has already checked them, so the methods
// return no errors.
type query map[string]string

// readQuery reads a request's parameters strictly. Each parameter may be given once, must be valid
// for its kind, and must be listed in spec. The parameter spec lists the parameters of the route,
// separated by spaces:
//
//	a           a text
//	a=operator  a text; ignored unless an operator sends it
//	a=time      a time
//	a=30s       a duration of at most 30 s
//	a=count     a number from 0
//	a=200       a number from 1 to 200
//	a=page      a number from 1 to Config.MaxPageSize
func (x *exchange) readQuery(spec string) error {
	if x.r.URL.RawQuery == "" {
		return nil
	}
	values, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		return notify.Invalid(api.CodeMalformed, "", "the query of the URL is not valid")
	}
	x.query = query{}
	for _, one := range strings.Fields(spec) {
		name, kind, _ := strings.Cut(one, "=")
		given, ok := values[name]
		if !ok || kind == "operator" && !x.operator() {
			continue
		}
		delete(values, name)
		if len(given) > 1 {
			return notify.Invalid("duplicate_key", name, "the parameter is given twice")
		}
		if kind == "page" {
			kind = strconv.Itoa(x.srv.cfg.MaxPageSize)
		}
		if code, rule := checkParam(kind, given[0]); code != "" {
			return notify.Invalid(code, name, rule)
		}
		x.query[name] = given[0]
	}
	if len(values) > 0 {
		name := slices.Min(slices.Collect(maps.Keys(values)))
		return notify.Invalid("unknown_field", name[:min(len(name), 64)], "there is no such parameter")
	}
	return nil
}

// checkParam checks the value s of a parameter of this kind (see readQuery). If s is valid, it
// returns an empty error code. Otherwise it returns the error code and the rule that s breaks.
func checkParam(kind, s string) (code, rule string) {
	if kind == "" || kind == "operator" || s == "" {
		return "", ""
	}
	switch kind {
	case "time":
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return "bad_time", "must be an RFC 3339 time, e.g. 2026-01-02T15:04:05Z"
		}
		if ms := t.UnixMilli(); ms <= 0 || ms > lastMoment {
			return "out_of_range", "must be a time from 1970 to 9999, in UTC"
		}
		return "", ""
	case "count":
		if _, err := strconv.ParseUint(s, 10, 64); err != nil {
			return "out_of_range", "must be a whole number that is not negative"
		}
		return "", ""
	}
	if most, err := time.ParseDuration(kind); err == nil {
		if d, err := parseSpan(s); err != nil || d < 0 || d > most {
			return "out_of_range", "must be from 0s to " + most.String()
		}
		return "", ""
	}
	most, _ := strconv.ParseInt(kind, 10, 64) // the route table contains kind, so it is a number
	if n, err := strconv.ParseInt(s, 10, 64); err != nil || n < 1 || n > most {
		return "out_of_range", "must be a number from 1 to " + kind
	}
	return "", ""
}

// parseSpan parses a duration such as "30s", or a number of seconds.
func parseSpan(s string) (time.Duration, error) {
	if n, err := strconv.ParseUint(s, 10, 16); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	return time.ParseDuration(s)
}

// text returns a parameter, or "" if the request does not have it.
func (q query) text(name string) string { return q[name] }

// number returns a parameter as a number, or def if the request does not have it.
func (q query) number(name string, def int) int {
	if n, err := strconv.Atoi(q[name]); err == nil {
		return n
	}
	return def
}

// unsigned returns a parameter as a number, or 0 if the request does not have it.
func (q query) unsigned(name string) uint64 {
	n, _ := strconv.ParseUint(q[name], 10, 64)
	return n
}

// lastMoment is the end of the year 9999 in ms since 1970. Answers use RFC 3339, which has no later
// time.
const lastMoment = 253_402_300_799_999

// moment returns a time parameter in ms since 1970, or 0 if the request does not have it.
func (q query) moment(name string) int64 {
	if t, err := time.Parse(time.RFC3339, q[name]); err == nil {
		return t.UnixMilli()
	}
	return 0
}

// pageSize returns how many items a page may have.
func (x *exchange) pageSize() int { return x.query.number("limit", x.srv.cfg.PageSize) }

// cursorPosition returns the position in the request's cursor. It returns notify.KindInvalid if the
// cursor was made with other strings than those in bound.
func (x *exchange) cursorPosition(bound []string) ([]byte, error) {
	return x.srv.cursors.openCursor(x.query.text("cursor"), bound...)
}

// mapSlice returns convert(&v) for each element v. The result is never nil.
func mapSlice[A, B any](list []A, convert func(*A) B) []B {
	out := make([]B, len(list))
	for i := range list {
		out[i] = convert(&list[i])
	}
	return out
}

// cursorSealer makes cursors from positions in lists. A cursor contains a MAC over the position,
// the list and the caller. openCursor refuses a cursor that was changed or that belongs to another
// caller or list. So the position that an engine gets is always one that it returned before.
type cursorSealer struct{ key []byte }

const macSize = 16

// sealCursor returns an opaque cursor. For a nil position, which means the end of the list, it
// returns "".
func (c cursorSealer) sealCursor(place []byte, bound ...string) string {
	if place == nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(c.mac(place, bound), place...))
}

// openCursor returns the position in a cursor that sealCursor made. For "", which means the
// beginning of the list, it returns nil.
func (c cursorSealer) openCursor(s string, bound ...string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	bad := notify.Invalid("bad_cursor", "cursor", "must be a cursor that this list returned, unchanged")
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < macSize {
		return nil, bad
	}
	place := b[macSize:]
	if !hmac.Equal(b[:macSize], c.mac(place, bound)) {
		return nil, bad
	}
	return place, nil
}

func (c cursorSealer) mac(place []byte, bound []string) []byte {
	h := hmac.New(sha256.New, c.key)
	var n [8]byte
	for _, s := range bound {
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	h.Write(place)
	return h.Sum(nil)[:macSize]
}
