package term

import (
	"os/exec"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestQuote(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a/b.csv": "a/b.csv", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$x": "'$x'", "~x": "'~x'"} {
		if got := Quote(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash to read it back")
	}
	for _, word := range []string{
		"shop", "", "a b", "it's", "$(rm -rf /)", "`x`", "a;b", "~root", "a~b", "a\nb", "\x1b[31m", "\u202eabc", "é", "\xff", `\`, "--",
		"\"'><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e\u2066\u0085&{{.}}\n-",
	} {
		q := Quote(word)
		if notify.HasControl(q) {
			t.Errorf("%q is quoted with a control character: %q", word, q)
		}
		out, err := exec.CommandContext(t.Context(), bash, "-c", "printf '%s' "+q).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q became %s, read back as %q, %v", word, q, out, err)
		}
	}
}
