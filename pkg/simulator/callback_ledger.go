package simulator

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Signature is the result of checking the signature of a call.
type Signature string

// The results of checking a signature.
const (
	SignatureNone      Signature = "none"      // the call had no signature, and needed no signature
	SignatureUnchecked Signature = "unchecked" // the call had a signature, but the receiver has no secret to check it
	SignatureGood      Signature = "good"
	// SignatureBad means that the signature is wrong. The receiver answers 401 if a secret was set
	// over the control API.
	SignatureBad Signature = "bad"
)

// Call is one call of a trigger, as the receiver sees it.
type Call struct {
	At        time.Time `json:"at"`
	ID        string    `json:"id"`
	Attempt   int       `json:"attempt"` // X-Trigger-Attempt
	Status    int       `json:"status"`  // status of the answer; 0: no answer
	Taken     bool      `json:"taken"`   // true: the receiver acted on the call, even if there was no answer
	Signature Signature `json:"signature"`
	Due       int64     `json:"due,omitempty"` // ms since 1970, from the query of the URL; 0: not given
	Path      string    `json:"path"`
	Bytes     int       `json:"bytes"` // length of the body
	// Traceparent and Tracestate are the W3C trace context headers of the call.
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`

	// Content is kept for the latest contentKeep calls. For older calls it is nil.
	Content *CallContent `json:"content,omitempty"`
}

// CallContent holds the contents of a call.
type CallContent struct {
	Method string      `json:"method"`
	URL    string      `json:"url"` // path and query
	Header http.Header `json:"header"`
	Body   string      `json:"body"`             // first contentBytes of the body; base64 if Binary
	Binary bool        `json:"binary,omitempty"` // true: the body is not UTF-8
	Cut    bool        `json:"cut,omitempty"`    // true: the body is longer than contentBytes, so Body has only its beginning
}

const (
	contentKeep  = 1000    // number of calls whose content is kept; the limit bounds memory during load runs
	contentBytes = 4 << 10 // most bytes of a body that are kept: the greatest length of a trigger's payload
)

func contentOf(r *http.Request, body []byte) *CallContent {
	c := &CallContent{Method: r.Method, URL: r.URL.RequestURI(), Header: r.Header, Cut: len(body) > contentBytes, Binary: !utf8.Valid(body)}
	if body = body[:min(len(body), contentBytes)]; c.Binary {
		c.Body = base64.StdEncoding.EncodeToString(body)
	} else {
		c.Body = strings.ToValidUTF8(string(body), "") // the cut may have split a character
	}
	return c
}

// CallTotals counts all calls. It measures lateness for the first call of each trigger whose URL
// contains the due time.
type CallTotals struct {
	Calls        int64 `json:"calls"`
	Triggers     int64 `json:"triggers"`
	Taken        int64 `json:"taken"`      // triggers with at least one call that the receiver acted on
	Duplicates   int64 `json:"duplicates"` // calls of a trigger after the call that the receiver acted on
	BadSignature int64 `json:"bad_signature"`
	Early        int64 `json:"early"` // first calls that came before their due time
	Timed        int64 `json:"timed"` // first calls whose URL contains a due time
	LateP50us    int64 `json:"late_p50_us"`
	LateP99us    int64 `json:"late_p99_us"`
	LateP999us   int64 `json:"late_p999_us"`
	LateMaxus    int64 `json:"late_max_us"`
	// LateBuckets counts first calls by lateness, for charts. The buckets are: below 1, 2, 5, 10,
	// 20, 50, 100, 200, 500, 1,000 ms, and 1,000 ms or more.
	LateBuckets []int64 `json:"late_buckets"`
}

// lateBounds holds the upper bounds of LateBuckets, in ms.
var lateBounds = [...]int64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}

// callLedger remembers the calls of the last maxTriggers triggers, and counts all calls.
type callLedger struct {
	maxTriggers int

	mu          sync.Mutex // guards the fields below
	calls       map[string][]Call
	order       []string // ids of triggers, in the order of their first calls
	withContent [contentKeep]struct {
		id string
		n  int // index in calls[id]
	} // a ring with the calls whose content is kept
	oldestContent int // place of the oldest call in withContent
	sum           CallTotals
	late          *hdrhistogram.Histogram // lateness in us
}

func newCallLedger(keep int) *callLedger {
	l := &callLedger{maxTriggers: keep}
	l.reset()
	return l
}

func (l *callLedger) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls, l.order = map[string][]Call{}, nil
	clear(l.withContent[:])
	l.oldestContent = 0
	l.sum = CallTotals{LateBuckets: make([]int64, len(lateBounds)+1)}
	l.late = hdrhistogram.New(1, int64(24*time.Hour/time.Microsecond), 3)
}

func (l *callLedger) add(c Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.calls[c.ID]
	l.sum.Calls++
	if c.Signature == SignatureBad {
		l.sum.BadSignature++
	}
	taken := false
	for i := range before {
		taken = taken || before[i].Taken
	}
	switch {
	case taken:
		l.sum.Duplicates++
	case c.Taken:
		l.sum.Taken++
	}
	if len(before) == 0 {
		l.sum.Triggers++
		l.countLateness(&c)
		if l.order = append(l.order, c.ID); len(l.order) > l.maxTriggers {
			delete(l.calls, l.order[0])
			l.order = l.order[1:]
		}
	}
	l.calls[c.ID] = append(before, c)
	old := &l.withContent[l.oldestContent]
	if of := l.calls[old.id]; old.n < len(of) {
		of[old.n].Content = nil
	}
	old.id, old.n = c.ID, len(before)
	l.oldestContent = (l.oldestContent + 1) % contentKeep
}

// countLateness counts how late the first call of a trigger is. It counts an early call in the
// fields Early and Timed, but not in the distribution of lateness.
func (l *callLedger) countLateness(c *Call) {
	if c.Due == 0 {
		return
	}
	l.sum.Timed++
	late := c.At.Sub(time.UnixMilli(c.Due))
	if late < 0 {
		l.sum.Early++
		return
	}
	_ = l.late.RecordValue(min(max(late.Microseconds(), 1), l.late.HighestTrackableValue())) // the value is in range
	i := 0
	for i < len(lateBounds) && late >= time.Duration(lateBounds[i])*time.Millisecond {
		i++
	}
	l.sum.LateBuckets[i]++
}

func (l *callLedger) totals() CallTotals {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.sum
	t.LateBuckets = append([]int64(nil), t.LateBuckets...)
	t.LateP50us, t.LateP99us = l.late.ValueAtQuantile(50), l.late.ValueAtQuantile(99)
	t.LateP999us, t.LateMaxus = l.late.ValueAtQuantile(99.9), l.late.Max()
	return t
}

func (l *callLedger) callsOf(id string) []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Call(nil), l.calls[id]...)
}

// writeDump writes the calls of all triggers, in the order of the first calls of the triggers. If
// the query has since_ms, it writes only calls that came at that time or later.
func (l *callLedger) writeDump(w http.ResponseWriter, r *http.Request) {
	ms, ok := queryUint(w, r, "since_ms", 0, math.MaxInt64)
	if !ok {
		return
	}
	since := time.UnixMilli(int64(ms))
	w.Header().Set("Content-Type", "application/x-ndjson")
	var ids []string
	l.mu.Lock()
	for _, id := range l.order {
		if of := l.calls[id]; len(of) > 0 && !of[len(of)-1].At.Before(since) {
			ids = append(ids, id)
		}
	}
	l.mu.Unlock()
	out := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(out)
	for _, id := range ids {
		for _, c := range l.callsOf(id) {
			if c.At.Before(since) {
				continue
			}
			c.Content = nil // the content is large, and only the latest calls have it
			if enc.Encode(c) != nil {
				return // the reader has closed the connection
			}
		}
	}
	_ = out.Flush() // an error means that the reader has closed the connection
}
