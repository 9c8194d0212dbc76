package server

import (
	"net/url"
	"sort"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// query reads a request's parameters strictly: each at most once, and none
// that the route does not have. What was read counts once rest has returned nil.
type query struct {
	values url.Values
	err    error
}

func (x *exchange) query() *query {
	q := &query{}
	if x.r.URL.RawQuery == "" {
		return q
	}
	var err error
	if q.values, err = url.ParseQuery(x.r.URL.RawQuery); err != nil {
		q.wrong(api.CodeMalformed, "", "the query cannot be read")
	}
	return q
}

// only refuses all parameters but those of the names, which whoever reads them
// checks. Most requests have none, and cost a comparison.
func (x *exchange) only(names ...string) error {
	if x.r.URL.RawQuery == "" {
		return nil
	}
	q := x.query()
	for _, name := range names {
		q.text(name)
	}
	return q.rest()
}

// text takes the parameter name; "" when it is not there.
func (q *query) text(name string) string {
	vs, ok := q.values[name]
	if !ok {
		return ""
	}
	delete(q.values, name)
	if len(vs) > 1 {
		q.wrong("duplicate_key", name, "the parameter is given twice")
	}
	return vs[0]
}

// wrong keeps the first thing that is wrong, which rest returns.
func (q *query) wrong(code, name, rule string) {
	if q.err == nil {
		q.err = notify.Invalid(code, name, rule)
	}
}

// number takes a number from 1 to most; def when it is not there.
func (q *query) number(name string, def, most int64) int64 {
	s := q.text(name)
	if s == "" {
		return def
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || n > most {
		q.wrong("out_of_range", name, "must be a number from 1 to "+strconv.FormatInt(most, 10))
	}
	return n
}

// pageSize takes how many items a page is to have.
func (q *query) pageSize(cfg *Config) int64 {
	return q.number("limit", int64(cfg.PageSize), int64(cfg.MaxPageSize))
}

// unsigned takes a number from 0 on; 0 when it is not there.
func (q *query) unsigned(name string) uint64 {
	s := q.text(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		q.wrong("out_of_range", name, "must be a number from 0 on")
	}
	return n
}

// lastMoment is the end of the year 9999, in ms since 1970: as far as RFC 3339 goes,
// in which times are answered.
const lastMoment = 253_402_300_799_999

// moment takes a time, as ms since 1970; 0 when it is not there.
func (q *query) moment(name string) int64 {
	s := q.text(name)
	if s == "" {
		return 0
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		q.wrong("bad_time", name, "must be a time of RFC 3339, e.g. 2026-01-02T15:04:05Z")
	}
	ms := t.UnixMilli()
	if err == nil && (ms <= 0 || ms > lastMoment) {
		q.wrong("out_of_range", name, "must be a time from 1970 to 9999, in UTC")
	}
	return ms
}

// span takes a duration, "30s", or a number of seconds, up to most.
func (q *query) span(name string, most time.Duration) time.Duration {
	s := q.text(name)
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if n, nerr := strconv.ParseUint(s, 10, 16); nerr == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < 0 || d > most {
		q.wrong("out_of_range", name, "must be from 0s to "+most.String())
	}
	return d
}

// place takes the cursor, which is bound to the strings of bound, as the last parameter.
func (q *query) place(by cursors, bound []string) ([]byte, error) {
	place, err := by.open(q.text("cursor"), bound...)
	if err != nil {
		return nil, err
	}
	return place, q.rest()
}

// rest is the error of what was taken, and of what nobody took.
func (q *query) rest() error {
	if q.err != nil {
		return q.err
	}
	if len(q.values) == 0 {
		return nil
	}
	names := make([]string, 0, len(q.values))
	for name := range q.values {
		names = append(names, name)
	}
	sort.Strings(names)
	return notify.Invalid("unknown_field", clip(names[0], 64), "there is no such parameter")
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
