package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// filterWords are the words of a filter of dead letters, in the order a command
// line has them.
var filterWords = []string{"channel", "category", "provider", "class", "code", "caller", "template", "state", "since", "until", "attempts", "where"}

// parseFilter reads "channel:push code:410 since:-2h". The rest of the line
// behind where: is its expression. Times are resolved now, once: what is shown,
// planned and replayed is the same.
func parseFilter(text string, now time.Time, parse func(string, time.Time) (time.Time, error)) (q api.DeadLetterQuery, err error) {
	q.Limit = lettersShown
	into := map[string]*string{
		"channel": &q.Channel, "category": &q.Category, "provider": &q.Provider, "class": &q.Class, "code": &q.Code,
		"caller": &q.Caller, "template": &q.Template, "state": &q.State, "attempts": &q.Attempts, "where": &q.Where,
	}
	for text = strings.TrimSpace(text); text != ""; {
		var word string
		if strings.HasPrefix(text, "where:") {
			word, text = text, ""
		} else {
			word, text, _ = strings.Cut(text, " ")
			text = strings.TrimSpace(text)
		}
		name, value, ok := strings.Cut(word, ":")
		if !ok || !slices.Contains(filterWords, name) {
			return q, fmt.Errorf("%q: write name:value, of %s", word, strings.Join(filterWords, ", "))
		}
		if value = strings.TrimSpace(value); value == "" {
			return q, fmt.Errorf("%s: has no value", name)
		}
		switch name {
		case "since":
			q.Since, err = parse(value, now)
		case "until":
			q.Until, err = parse(value, now)
		default:
			*into[name] = value
		}
		if err != nil {
			return q, err
		}
	}
	return q, nil
}

// selection is what a replay of everything a list shows selects. Only dead
// letters can be replayed, so the state is left to the server.
func selection(q *api.DeadLetterQuery) api.LetterFilter {
	f := api.LetterFilter{
		Channel: q.Channel, Category: q.Category, Provider: q.Provider, Class: q.Class, Code: q.Code, Caller: q.Caller,
		Template: q.Template, Attempts: q.Attempts, Where: q.Where,
	}
	if !q.Since.IsZero() {
		f.Since = q.Since.UnixMilli()
	}
	if !q.Until.IsZero() {
		f.Until = q.Until.UnixMilli()
	}
	f.All = len(filterFlags(&f)) == 0
	return f
}

// filterFlags are the flags of notifyctl dlq replay that mean a selection.
func filterFlags(f *api.LetterFilter) (words []string) {
	at := func(ms int64) string {
		if ms == 0 {
			return ""
		}
		return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.999Z")
	}
	values := []string{f.Channel, f.Category, f.Provider, f.Class, f.Code, f.Caller, f.Template, "", at(f.Since), at(f.Until), f.Attempts, f.Where}
	for i, v := range values {
		if v != "" {
			words = append(words, "--"+filterWords[i], v)
		}
	}
	for _, id := range f.IDs {
		words = append(words, "--id", id)
	}
	if f.All {
		words = append(words, "--all")
	}
	return words
}

// matches reports whether a row holds every word of a filter, whatever the case.
func matches(row []string, filter string) bool {
	text := strings.ToLower(strings.Join(row, " "))
	for _, w := range strings.Fields(strings.ToLower(filter)) {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}
