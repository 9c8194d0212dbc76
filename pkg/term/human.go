package term

import (
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// FormatDuration formats d with its largest unit or its two largest units: 450ms, 1.5s, 2h5m. d
// must not be negative.
func FormatDuration(d time.Duration) string {
	switch {
	case d < time.Microsecond:
		return fmt.Sprintf("%dns", d)
	case d < time.Millisecond:
		return fmt.Sprintf("%dus", d/time.Microsecond)
	case d < time.Second:
		return fmt.Sprintf("%dms", d/time.Millisecond)
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return twoUnits(d, time.Minute, "m", time.Second, "s")
	case d < 24*time.Hour:
		return twoUnits(d, time.Hour, "h", time.Minute, "m")
	}
	return twoUnits(d, 24*time.Hour, "d", time.Hour, "h")
}

func twoUnits(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	s := fmt.Sprintf("%d%s", d/big, bigName)
	if rest := d % big / small; rest > 0 {
		s += fmt.Sprintf("%d%s", rest, smallName)
	}
	return s
}

// Count formats a number with separators: 1,204,000.
func Count[N int | int64 | uint32 | uint64](n N) string {
	return Separated(fmt.Sprint(n))
}

// Separated inserts separators into the digits of a whole number.
func Separated(s string) string {
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Quote quotes a word for a shell. It writes control characters as escapes, so that the reader sees
// them, and so that a word copied from the terminal contains no line end.
func Quote(word string) string {
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
	case word != "" && word[0] != '~' && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0:
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Version returns the version of this program: the first of these values that is known.
//
//	linked, the value that the linker set
//	the commit of the build, 7 digits, as in make build
//	the version of the module, as in go install MODULE@VERSION
//	"dev"
func Version(linked string) string {
	info, ok := debug.ReadBuildInfo()
	if linked != "" || !ok {
		return orDev(linked)
	}
	return versionOf(info)
}

func orDev(v string) string {
	if v == "" {
		return "dev"
	}
	return v
}

func versionOf(info *debug.BuildInfo) string {
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	commit := set["vcs.revision"]
	if commit == "" { // the program was not built in its repository
		return orDev(strings.TrimPrefix(info.Main.Version, "(devel)"))
	}
	const abbreviated = 7
	commit = commit[:min(len(commit), abbreviated)]
	if set["vcs.modified"] == "true" {
		commit += "-dirty"
	}
	return commit
}
