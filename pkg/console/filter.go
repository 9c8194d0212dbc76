package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// parseFilter reads "channel:push code:410 since:-2h". The rest of the line
// behind where: is its expression. Times are resolved now, once: what is shown,
// planned and replayed is the same.
func parseFilter(text string, now time.Time, parse func(string, time.Time) (time.Time, error)) (f api.LetterFilter, err error) {
	names, words := api.LetterWords(), map[string]string{}
	for text = strings.TrimSpace(text); text != ""; {
		var word string
		if strings.HasPrefix(text, "where:") {
			word, text = text, ""
		} else {
			word, text, _ = strings.Cut(text, " ")
			text = strings.TrimSpace(text)
		}
		name, value, ok := strings.Cut(word, ":")
		if !ok || !slices.Contains(names, name) {
			return f, fmt.Errorf("%q: write name:value, of %s", word, strings.Join(names, ", "))
		}
		if words[name] = strings.TrimSpace(value); words[name] == "" {
			return f, fmt.Errorf("%s: has no value", name)
		}
	}
	f = api.ReadLetterFilter(func(name string) string { return words[name] }, func(name string) int64 {
		if words[name] == "" || err != nil {
			return 0
		}
		var at time.Time
		at, err = parse(words[name], now)
		return at.UnixMilli()
	})
	return f, err
}

// selection is what a replay of everything a list shows selects. Only dead
// letters can be replayed, so the state is left to the server.
func selection(f api.LetterFilter) api.LetterFilter {
	f.State = ""
	f.All = f.Empty()
	return f
}

// filterFlags are the flags of notifyctl dlq replay that mean a selection.
func filterFlags(f *api.LetterFilter) (words []string) {
	for _, w := range f.Words() {
		if w[0] != "state" {
			words = append(words, "--"+w[0], w[1])
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
func matches(row []cell, filter string) bool {
	text := ""
	for _, c := range row {
		text += " " + strings.ToLower(c.text)
	}
	for _, w := range strings.Fields(strings.ToLower(filter)) {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}
