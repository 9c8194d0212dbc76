package notify

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestCheckUserID(t *testing.T) {
	t.Parallel()
	f := func(id, want string) {
		t.Helper()
		if got := CheckUserID(id); got != want {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
	}
	f("", RuleUserIDSize)
	f(strings.Repeat("x", MaxUserID), "")
	f(strings.Repeat("x", MaxUserID+1), RuleUserIDSize)
	f(".", RuleUserIDPath)
	f("..", RuleUserIDPath)
	f("/", RuleUserIDPath)
	f("//", "")
	f("...", "")
	f("../a", "")
	f("a/b c%2f", "")
	f("ann\xff", RuleUserIDUTF8)
	for _, id := range []string{"ann", "Ünïcødé", "山田", "عمر", "می\u200cخواهم", "👩\u200d🔧", "❤\ufe0f", "❤\ufe0f\u200d🔥", "क्\u200dष", "\u0600123"} { // joiners are part of words
		f(id, "")
	}
	for _, r := range []rune{0, '\t', '\n', 0x1b, 0x7f, 0x80, 0x85, 0x9b, 0x9f, 0x061c, 0x200e, 0x200f, 0x2028, 0x2029, 0x202a, 0x202e, 0x2066, 0x2069} {
		f("a"+string(r)+"b", RuleUserIDControl)
		f(string(r), RuleUserIDControl)
	}
	for _, r := range []rune{0x00ad, 0x034f, 0x115f, 0x180e, 0x200b, 0x200c, 0x200d, 0x2060, 0x2064, 0x206a, 0x3164, 0xfe00, 0xfe0f, 0xfeff, 0xffa0, 0xfff9, 0x1d173, 0xe0001, 0xe0061, 0xe0100} {
		f("ann"+string(r), RuleUserIDControl)
		f("a"+string(r)+"nn", RuleUserIDControl)
		f(string(r)+"ann", RuleUserIDControl)
		f(string(r), RuleUserIDControl)
	}
	for _, id := range []string{"می\u200c", "می\u200c\u200cخ", "می\u200cx", "x\u200cخ", "❤\ufe0f\ufe0f", "❤\ufe00", "می\u200bخ"} {
		f(id, RuleUserIDControl)
	}
	if !strings.Contains(RuleUserIDSize, "128") || MaxUserID != 128 {
		t.Error("the rule names another limit than there is")
	}
}

// No control character of Unicode is let through, and nothing that is seen is
// stopped.
func TestIsControl(t *testing.T) {
	t.Parallel()
	for r := rune(0); r <= utf8.MaxRune; r++ {
		want := unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
		if IsControl(r) != want {
			t.Fatalf("%U: %v", r, !want)
		}
		if want && r >= 1<<16 {
			t.Fatalf("%U does not fit an escape of four digits", r)
		}
	}
}

func TestEscapeControls(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                  "",
		"Grüße, 山田 👩‍🔧":     "Grüße, 山田 👩‍🔧",
		"a\x1b[2J\x00":      `a\u001b[2J\u0000`,
		"ann\u202egnp.exe":  `ann\u202egnp.exe`,
		"c1 \u009b31m nel…": `c1 \u009b31m nel…`,
		"\xff\xfea\u2028":   `\xff\xfea\u2028`,
		"tab\tnewline\n":    `tab\u0009newline\u000a`,
	} {
		got := EscapeControls(in)
		if got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		if HasControl(got) || !utf8.ValidString(got) {
			t.Errorf("%q still holds what it should not", got)
		}
	}
}
