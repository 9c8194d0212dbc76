package simulator

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/net/html"
)

// Message is one message as its receiver would see it.
type Message struct {
	At       time.Time `json:"at"`
	Provider Provider  `json:"provider"`
	Channel  string    `json:"channel"`
	To       string    `json:"to"`
	Title    string    `json:"title"`
	Body     string    `json:"body"`
	ID       string    `json:"id"`
	Attempt  string    `json:"attempt,omitempty"`
	Status   int       `json:"status"` // 0: no answer
	Outcome  string    `json:"outcome"`
	// Traceparent and Tracestate are the W3C trace context headers of the request.
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
}

// content is the content of a message. It is a title and a body, or a template of the provider, or
// a push payload. A push payload is parsed only when the inbox is read.
type content struct {
	title, body    string
	html           bool   // true: the field body contains HTML
	template, data string // template id and values for it
	push           []byte
	parent, state  string // W3C trace context headers of the request
}

// inbox keeps the latest messages; the field size is how many of them it shows.
type inbox struct {
	mu      sync.Mutex
	size    int
	entries []inboxEntry // the oldest entry first; mu guards it
}

type inboxEntry struct {
	receiver
	content
	provider Provider
	outcome  Outcome
	status   int
	at       time.Time
}

func newInbox(size int) *inbox { return &inbox{size: size} }

func (b *inbox) addCall(c *providerCall, status int, outcome Outcome, now time.Time) {
	rs := c.receivers
	rs = rs[max(0, len(rs)-b.size):]
	b.mu.Lock()
	defer b.mu.Unlock()
	// Delete old entries only now and then, because deleting moves all kept entries.
	if over := len(b.entries) + len(rs) - 2*b.size; over > 0 {
		b.entries = slices.Delete(b.entries, 0, len(b.entries)-b.size)
	}
	for _, r := range rs {
		if r.personal != nil {
			own := *r.personal // a copy, because the pointer would keep the whole request in memory
			r.personal = &own
		}
		b.entries = append(b.entries, inboxEntry{receiver: r, content: c.content, provider: c.provider, outcome: outcome, status: status, at: now})
	}
}

// messages returns the latest messages, at most size of them, the newest message first.
func (b *inbox) messages() []Message {
	b.mu.Lock()
	kept := slices.Clone(b.entries[max(0, len(b.entries)-b.size):])
	b.mu.Unlock()
	slices.Reverse(kept)
	out := make([]Message, len(kept))
	for i, e := range kept {
		title, body := e.text()
		title, body = clipText(title, maxClip), clipText(body, maxClip)
		out[i] = Message{
			At: e.at, Provider: e.provider, Channel: e.provider.Channel().String(), To: e.address, Title: title, Body: body,
			ID: e.id, Attempt: e.attempt, Status: e.status, Outcome: e.outcome.String(),
			Traceparent: e.parent, Tracestate: e.state,
		}
	}
	return out
}

// text returns the title and the body as the receiver sees them: with the receiver's values instead
// of the substitution tags. For a template of the provider it returns only the template's id and
// values, because the simulator does not have the template.
func (e *inboxEntry) text() (title, body string) {
	if e.push != nil {
		return e.alert()
	}
	title, body = e.title, e.body
	own := e.personal
	if own == nil {
		own = &personalization{}
	}
	if own.Subject != "" {
		title = own.Subject
	}
	if e.template != "" {
		data := e.data
		if data == "" {
			data = string(own.TemplateData)
		}
		return "template " + e.template, data
	}
	if len(own.Substitutions) > 0 {
		fill := substitute(own.Substitutions)
		title, body = fill.Replace(title), fill.Replace(body)
	}
	if e.html {
		body = textOf(body)
	}
	return title, body
}

// substitute returns a Replacer that replaces tags with their values. If one tag is the beginning
// of another tag, the longer tag is replaced first.
func substitute(values map[string]string) *strings.Replacer {
	tags := slices.SortedFunc(maps.Keys(values), func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	pairs := make([]string, 0, 2*len(tags))
	for _, tag := range tags {
		if tag != "" {
			pairs = append(pairs, tag, values[tag])
		}
	}
	return strings.NewReplacer(pairs...)
}

// textOf returns the text of HTML. Each block begins on a new line.
func textOf(markup string) string {
	var b strings.Builder
	hidden := false
	for z := html.NewTokenizer(strings.NewReader(markup)); ; {
		kind := z.Next()
		if kind == html.ErrorToken { // the end, or HTML that is incomplete
			break
		}
		name, _ := z.TagName()
		switch kind {
		case html.TextToken:
			if !hidden {
				b.WriteString(strings.Join(strings.FieldsFunc(string(z.Text()), func(r rune) bool { return r == '\n' || r == '\r' || r == '\t' }), " "))
			}
		case html.StartTagToken, html.EndTagToken, html.SelfClosingTagToken:
			switch string(name) {
			case "head", "script", "style":
				hidden = kind == html.StartTagToken
			case "br", "p", "div", "h1", "h2", "h3", "h4", "li", "tr", "table", "ul", "ol":
				if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
					b.WriteByte('\n')
				}
			}
		}
	}
	return strings.TrimSpace(b.String())
}

// alert returns the title and the body in aps.alert. If the alert is a string, it is the body and
// there is no title.
func (c *content) alert() (title, body string) {
	var p struct {
		APS struct {
			Alert json.RawMessage `json:"alert"`
		} `json:"aps"`
	}
	if json.Unmarshal(c.push, &p) != nil {
		return "", ""
	}
	var full struct {
		Title string `json:"title"`
		Body  string `json:"body"`
	}
	if json.Unmarshal(p.APS.Alert, &full) == nil {
		return full.Title, full.Body
	}
	_ = json.Unmarshal(p.APS.Alert, &body) // after an error the result body stays empty, because a push without an alert has no text
	return "", body
}

// maxClip is the most bytes of a text that the inbox shows.
const maxClip = 4096

// clipText returns s if s has at most n bytes. Otherwise it returns a copy of at most the first n
// bytes, with "…" at the end. It makes a copy so that the memory of s can be freed.
func clipText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.Clone(s[:n]) + "…"
}
