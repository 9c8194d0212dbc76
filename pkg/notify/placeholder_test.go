package notify

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// placeholders is what NextPlaceholder does, said the short way: the text
// between "{{" and the next "}}", without the spaces around it.
func placeholders(s string) (names []string) {
	for at := 0; ; {
		i := strings.Index(s[at:], "{{")
		if i < 0 {
			return names
		}
		at += i
		n := strings.Index(s[at:], "}}")
		if n < 0 {
			return names
		}
		name := strings.Trim(s[at+2:at+n], " ")
		if name == "" || len(name) > MaxPlaceholder || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") != "" || strings.ContainsAny(name, "{} é") {
			at++
			continue
		}
		names = append(names, name)
		at += n + 2
	}
}

func TestPlaceholders(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		parts := rapid.SliceOf(rapid.SampledFrom([]string{"{", "}", "{{", "}}", " ", "a", "name", "é", strings.Repeat("x", 40), "0.-_"})).Draw(rt, "parts")
		s := strings.Join(parts, "")
		var got []string
		for at := 0; ; {
			open, end, name, ok := NextPlaceholder(s, at)
			if !ok {
				break
			}
			if open < at || s[open:open+2] != "{{" || s[end-2:end] != "}}" {
				rt.Fatalf("%q: %d to %d", s, open, end)
			}
			got = append(got, name)
			at = end
		}
		if want := placeholders(s); strings.Join(got, "|") != strings.Join(want, "|") {
			rt.Fatalf("%q: %q, want %q", s, got, want)
		}
	})
}
