package report

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// golden compares a text with testdata/name. With UPDATE_GOLDEN=1 it writes the file.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not as it was (UPDATE_GOLDEN=1 writes it); it is now:\n%.6000s", file, got)
	}
}

func text(t *testing.T, r *load.Result) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteText(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestText(t *testing.T) {
	t.Parallel()
	r := fixture(t)
	golden(t, "summary.txt", []byte(text(t, r)))
	r = fixture(t)
	r.Partial, r.Stopped, r.Segment = true, "Ctrl-C at 0:41", load.Segment{I: 2, N: 4}
	r.Verdict = load.Verdict{Code: load.GeneratorBound, Reasons: []string{"the lag p99 was 61.4ms in second 31, which is more than a tenth of the response p99 that it would be a part of"}}
	r.Ledger = load.LedgerResult{}
	golden(t, "summary-partial.txt", []byte(text(t, r)))
	r = fixture(t)
	r.Agents = agents()
	golden(t, "summary-agents.txt", []byte(text(t, r)))
}

// agents returns one agent without problems, one that is the limit, and one that was lost.
func agents() []load.Agent {
	return []load.Agent{
		{Name: "load1:7431", State: load.AgentDone, Host: "load1", Version: "v0.5.0", Offset: -1500 * time.Microsecond, Uncertainty: 240 * time.Microsecond, Sent: 20_000, CPU: 0.4, CPUs: 2, Verdict: load.Valid},
		{Name: "load2:7431", State: load.AgentDone, Host: "load2", Sent: 20_000, CPU: 1.98, CPUs: 2, Verdict: load.GeneratorBound},
		{Name: "load3:7431", State: load.AgentLost, Host: "load3", Sent: 9_000, NotSent: 11_000, LostAt: 27 * time.Second, LostBecause: "it was silent for 3s"},
	}
}

// nasty returns a result with dangerous texts in every field that a scenario or a server may choose.
// The texts contain HTML, and control characters that change a terminal.
func nasty(t *testing.T) *load.Result {
	r := fixture(t)
	const bad = "\x1b[31m\x1b]0;owned\a</script><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\"'`{{.}}\r\n\x9b2J=" + "javascript:alert(1) Tag=x,1,2,3"
	for _, s := range []*string{
		&r.Scenario.Name, &r.Scenario.About, &r.Scenario.YAML, &r.Scenario.Digest, &r.Scenario.Scale, &r.Stopped, &r.Verdict.Code,
		&r.Steps[0].Name, &r.Steps[0].Phase, &r.Steps[0].Arrival, &r.Steps[0].Target, &r.Steps[0].Channel, &r.Steps[0].Category,
		&r.Errors[0].Class, &r.Errors[0].Code, &r.Errors[0].Step, &r.Thresholds[0].Expr, &r.Markers[0].Kind, &r.Markers[0].Text,
		&r.Faults[0].Name, &r.Faults[0].Error, &r.Environment.CPU, &r.Environment.Host, &r.Environment.Server, &r.Environment.Kernel,
		&r.Seconds[0].Phase, &r.Intervals[0].Step, &r.Intervals[0].Phase, &r.Intervals[0].Kind,
	} {
		*s = bad
	}
	r.Verdict.Reasons = []string{bad}
	r.Environment.Labels = map[string]string{bad: bad}
	r.Ledger.Examples = []string{bad}
	r.Partial = true
	r.Agents = []load.Agent{{Name: bad, State: load.AgentLost, LostBecause: bad, Host: bad, Version: bad, Verdict: bad}}
	return r
}

func TestTextIsHarmlessAndNarrow(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*load.Result{"fixture": fixture(t), "nasty": nasty(t), "empty": {}} {
		out := text(t, r)
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		for i, l := range lines {
			if w := ansi.StringWidth(l); w > 80 && i < len(lines)-1 {
				t.Errorf("%s: line %d is %d wide: %q", name, i, w, l)
			}
			if notify.HasControl(l) || !utf8.ValidString(l) {
				t.Errorf("%s: line %d steers the terminal: %q", name, i, l)
			}
		}
		last := lines[len(lines)-1]
		for _, pair := range strings.Fields(strings.TrimPrefix(last, "load ")) {
			if strings.Count(pair, "=") != 1 {
				t.Errorf("%s: the last line has %q", name, pair)
			}
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	r := fixture(t)
	raw, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "run.json", raw)
	back, err := Decode(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	again, err := Encode(back)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(raw, again) {
		t.Error("what is read back is not what was written")
	}
	f := func(in, want string) {
		t.Helper()
		_, err := Decode(strings.NewReader(in))
		if notify.KindOf(err) != notify.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30s: %v, want %q", in, err, want)
		}
	}
	f("", "is not the JSON")
	f("[]", "is not the JSON")
	f(`{"scenario":{}}`, "not the result")
	f(`{"schema":99}`, "is 99, but this notifyctl reads only schema 1")
	f(`{"schema":1} {}`, "more data follows")
	f(`{"schema":1,"seconds":[{"second":0},{"second":99999999999}]}`, "seconds: row 1")
	f(`{"schema":1,"seconds":[{"second":-1}]}`, "seconds: row 0")
	f(`{"schema":1,"seconds":[{"second":5},{"second":4}]}`, "seconds: row 1")
}

func TestUnits(t *testing.T) {
	t.Parallel()
	f := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f(Nanos(0), "0ns")
	f(Nanos(999), "999ns")
	f(Nanos(1000), "1.00us")
	f(Nanos(999_499), "999us")
	f(Nanos(999_600), "1.00ms")
	f(Nanos(12_340_000), "12.3ms")
	f(Nanos(-12_340_000), "-12.3ms")
	f(Nanos(127_400_000_000), "127s")
	f(FormatCount(0), "0")
	f(FormatCount(950), "950")
	f(FormatCount(9_994), "9994")
	f(FormatCount(12_345), "12.3K")
	f(FormatCount(999_600), "1.00M")
	f(FormatCount(5_000_000), "5.00M")
	f(FormatCount(0.25), "0.25")
	f(FormatClock(65_000_000_000), "1:05")
	f(FormatClock(3_723_000_000_000), "1:02:03")
	f(percent(999_980, 1_000_000), "99.998%")
	f(percent(1, 1), "100.0%")
	f(percent(1, 0), "-")
	f(FormatBytes(1536), "1.50 KiB")
	f(ThresholdValue(load.ThresholdState{Expr: "p99 < 5ms", Value: 4e6, Known: true}), "4.00ms")
	f(ThresholdValue(load.ThresholdState{Expr: "lost == 0", Value: 3, Known: true}), "3")
}
