package web

import (
	"fmt"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
)

// command writes a line for a shell. Arguments that are empty are left out, and a
// flag with them: command("dlq", "ls", "--caller", "") is "notifyctl dlq ls".
func command(args ...string) string {
	out := []string{"notifyctl"}
	for i := 0; i < len(args); i++ {
		switch {
		case strings.HasPrefix(args[i], "--") && i+1 < len(args) && args[i+1] == "":
			i++
		case args[i] == "":
		default:
			out = append(out, quote(args[i]))
		}
	}
	return strings.Join(out, " ")
}

// quote writes a word as a shell reads it back. One with control characters is
// written so that whoever copies it sees them, and pastes no line end.
func quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,", r)
	}
	switch {
	case notify.EscapeControls(word) != word:
		var b strings.Builder
		b.WriteString("$'")
		for i := range len(word) {
			if c := word[i]; c < ' ' || c > '~' || c == '\'' || c == '\\' {
				fmt.Fprintf(&b, `\x%02x`, c)
			} else {
				b.WriteByte(c)
			}
		}
		return b.String() + "'"
	case word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0:
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
