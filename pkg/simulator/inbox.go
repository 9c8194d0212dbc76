package simulator

import (
	"encoding/json"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
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
	Status   int       `json:"status"` // 0: not answered
	Outcome  string    `json:"outcome"`
}

// content is what a message says: title and body, or a push payload that is
// taken apart only when somebody looks.
type content struct {
	title, body string
	push        []byte
}

// inbox keeps the last messages.
type inbox struct {
	mu   sync.Mutex
	ring []inboxEntry
	next int // where the next one goes
	full bool
}

type inboxEntry struct {
	receiver
	content
	provider Provider
	outcome  Outcome
	status   int
	at       time.Time
}

func newInbox(size int) *inbox { return &inbox{ring: make([]inboxEntry, size)} }

func (b *inbox) add(c *call, status int, outcome Outcome, now time.Time) {
	rs := c.receivers
	rs = rs[max(0, len(rs)-len(b.ring)):]
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range rs {
		b.ring[b.next] = inboxEntry{receiver: r, content: c.content, provider: c.provider, outcome: outcome, status: status, at: now}
		if b.next++; b.next == len(b.ring) {
			b.next, b.full = 0, true
		}
	}
}

// messages returns what is kept, newest first.
func (b *inbox) messages() []Message {
	b.mu.Lock()
	n := b.next
	if b.full {
		n = len(b.ring)
	}
	kept := make([]inboxEntry, n)
	for i := range kept {
		kept[i] = b.ring[(b.next-1-i+len(b.ring))%len(b.ring)]
	}
	b.mu.Unlock()

	out := make([]Message, n)
	for i, e := range kept {
		title, body := e.text()
		out[i] = Message{
			At: e.at, Provider: e.provider, Channel: e.provider.Channel().String(), To: e.address, Title: title, Body: body,
			ID: e.id, Attempt: e.attempt, Status: e.status, Outcome: e.outcome.String(),
		}
	}
	return out
}

// text returns title and body; APNs has both, or only a body, in aps.alert.
func (c *content) text() (title, body string) {
	if c.push == nil {
		return c.title, c.body
	}
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
	_ = json.Unmarshal(p.APS.Alert, &body) // a push without an alert has no text
	return "", body
}

// clipped is the most of a text that the inbox keeps, in bytes.
const clipped = 4096

// clip shortens s and lets go of what it was part of.
func clip(s string) string {
	if len(s) <= clipped {
		return s
	}
	n := clipped
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.Clone(s[:n]) + "…"
}
