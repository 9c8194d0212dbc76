package api

import (
	"net/url"
	"time"
)

// LetterFilter selects dead letters; empty fields select all. It is part of a plan's
// digest, so the order of its fields and their names are fixed.
type LetterFilter struct {
	Channel  string   `json:"channel,omitempty"` // push, sms, email, trigger
	Category string   `json:"category,omitempty"`
	Class    string   `json:"class,omitempty"`
	Code     string   `json:"code,omitempty"`
	Provider string   `json:"provider,omitempty"` // stands for its accounts too: "twilio" for "twilio:AC1"
	Caller   string   `json:"caller,omitempty"`
	Template string   `json:"template,omitempty"`
	State    string   `json:"state,omitempty"`    // dead, replayed, discarded
	Since    int64    `json:"since_ms,omitempty"` // failed last in [Since, Until), ms since 1970
	Until    int64    `json:"until_ms,omitempty"`
	IDs      []string `json:"ids,omitempty"`      // at most 10,000; not in queries
	Attempts string   `json:"attempts,omitempty"` // a number, or one behind >=, <=, > or <
	Where    string   `json:"where,omitempty"`    // a jq expression over the letter's JSON that only selects; true does
	All      bool     `json:"all,omitempty"`      // says that an empty filter is meant; not in queries
}

// letterPart is one part of a filter: a text, or a time.
type letterPart struct {
	name string
	text *string
	ms   *int64
}

// parts lists the parts of f under their names in queries, in flags of notifyctl and in
// the console, in the order in which they are written.
func (f *LetterFilter) parts() []letterPart {
	return []letterPart{
		{"channel", &f.Channel, nil}, {"category", &f.Category, nil}, {"provider", &f.Provider, nil}, {"class", &f.Class, nil},
		{"code", &f.Code, nil}, {"caller", &f.Caller, nil}, {"template", &f.Template, nil}, {"state", &f.State, nil},
		{"since", nil, &f.Since}, {"until", nil, &f.Until}, {"attempts", &f.Attempts, nil}, {"where", &f.Where, nil},
	}
}

// LetterWords are the names of the parts of a filter.
func LetterWords() (names []string) {
	for _, p := range new(LetterFilter).parts() {
		names = append(names, p.name)
	}
	return names
}

// ReadLetterFilter makes a filter of what text and ms return for the names of its parts.
// ms returns times, in ms since 1970; nil: the filter has none.
func ReadLetterFilter(text func(name string) string, ms func(name string) int64) (f LetterFilter) {
	for _, p := range f.parts() {
		switch {
		case p.text != nil:
			*p.text = text(p.name)
		case ms != nil:
			*p.ms = ms(p.name)
		}
	}
	return f
}

// Words returns the name and the text of each part that selects, times in RFC 3339.
func (f *LetterFilter) Words() (words [][2]string) {
	for _, p := range f.parts() {
		switch {
		case p.text != nil && *p.text != "":
			words = append(words, [2]string{p.name, *p.text})
		case p.ms != nil && *p.ms != 0:
			words = append(words, [2]string{p.name, time.UnixMilli(*p.ms).UTC().Format(time.RFC3339Nano)})
		}
	}
	return words
}

// Query returns the filter as parameters.
func (f *LetterFilter) Query() url.Values {
	q := url.Values{}
	for _, w := range f.Words() {
		q.Set(w[0], w[1])
	}
	return q
}

// Empty reports whether f selects every dead letter.
func (f *LetterFilter) Empty() bool { return len(f.Words()) == 0 && len(f.IDs) == 0 }
