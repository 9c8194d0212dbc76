package codes

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/term"
)

// produced lists what the sources print, by kind.
func produced(t *testing.T) (s *sources, of map[string]map[string]string) {
	t.Helper()
	s = readSources(t)
	s.errorCodes()
	of = map[string]map[string]string{"error": s.codes, "state": {}, "class": {}, "verdict": {}, "exit": {}}
	add := func(kind, file string, words []string) {
		if len(words) == 0 {
			t.Errorf("%s: no %s is found there any more", file, kind)
		}
		for _, w := range words {
			if w != "" && w != "NONE" {
				of[kind][w] = file
			}
		}
	}
	add("state", "pkg/notify/state.go", s.strings("pkg/notify/state.go", "stateNames"))
	add("state", "pkg/limit/breaker.go", s.texts("pkg/limit/breaker.go", "String"))
	add("state", "pkg/engine/deadletter.go", s.constants("pkg/engine/deadletter.go", "Letter"))
	add("state", "cmd/notifyctl/doctor.go", s.strings("cmd/notifyctl/doctor.go", "levels"))
	add("state", "pkg/app/serve.go", s.texts("pkg/app/serve.go", "warnings"))
	add("state", triggerFile, s.strings(triggerFile, "stateNames"))
	add("class", "pkg/notify/call.go", append(s.strings("pkg/notify/call.go", "classNames"), "unknown"))
	add("class", "pkg/notify/failure.go", s.constants("pkg/notify/failure.go", "FailureUndeliverable"))
	add("class", "pkg/trigger/call.go", s.constants("pkg/trigger/call.go", "Class"))
	for _, name := range []string{
		"Missing", "Late", "Stuck", "Orphan", "ClaimExpired", "LetterOwed", "OpenBucket", "StatusAlone", "RecordAlone", "Unreadable",
	} {
		add("class", "pkg/conserve/report.go", s.constants("pkg/conserve/report.go", name))
	}
	for _, name := range []string{"Valid", "GeneratorBound", "SinkBound", "ConcurrencyBound", "Inconclusive"} {
		add("verdict", "pkg/load/snapshot.go", s.constants("pkg/load/snapshot.go", name))
	}
	add("exit", "pkg/term/exit.go", s.constants("pkg/term/exit.go", "Exit"))
	return s, of
}

const triggerFile = "pkg/trigger/change.go"

// entriesOf lists the catalogue's entries of a kind by code.
func entriesOf(kind string) map[string]Entry {
	out := map[string]Entry{}
	for _, e := range All() {
		if e.Kind == kind {
			out[e.Code] = e
		}
	}
	return out
}

// A code that is printed and not explained, or explained and never printed,
// fails here.
func TestCatalogueIsWhatIsPrinted(t *testing.T) {
	t.Parallel()
	s, of := produced(t)
	if n := len(of["error"]); n < 300 {
		t.Errorf("only %d error codes are found: the walk misses most of them", n)
	}
	for kind, codes := range of {
		have := entriesOf(kind)
		for _, code := range slices.Sorted(maps.Keys(codes)) {
			if !explained(have, code) {
				t.Errorf("%s prints the %s %s: it is not in catalogue.txt", codes[code], kind, code)
			}
		}
		for _, code := range slices.Sorted(maps.Keys(have)) {
			if !isProduced(s, codes, code) {
				t.Errorf("catalogue.txt explains the %s %s: nothing prints it", kind, code)
			}
		}
	}
}

// explained reports whether the catalogue has a code, or the family "*_end" or
// "begin_*".
func explained(have map[string]Entry, code string) bool {
	if _, ok := have[code]; ok {
		return true
	}
	if !strings.Contains(code, "*") {
		return false // instances of families are made at run time, and are no literals
	}
	for c := range have {
		if hole.MatchString(c) && hole.ReplaceAllString(c, "*") == code {
			return true
		}
	}
	return false
}

func isProduced(s *sources, codes map[string]string, code string) bool {
	if _, ok := codes[hole.ReplaceAllString(code, "*")]; ok {
		return true
	}
	_, ok := s.may[code]
	return ok
}

// The test above must be able to fail.
func TestTheWalkFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	s, of := produced(t)
	have := entriesOf("error")
	for _, code := range []string{"bad_json", "opted_out", "twilio_21610", "apns_unregistered", "*_circuit_open", "http_*", "token_expired", "cannot_mute", "trigger_not_found", "timer_store", "caller_in_flight", "expired", "url_port", "user_id_required"} {
		if _, ok := of["error"][code]; !ok {
			t.Errorf("the walk does not find %s", code)
		}
	}
	delete(have, "bad_json")
	if explained(have, "bad_json") || explained(have, "*_nonsense") || isProduced(s, of["error"], "never_printed") {
		t.Error("what is missing passes")
	}
}

// The page of exit codes in the help says the same.
func TestExitCodesAreThoseOfTheHelp(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../../cmd/notifyctl/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for code, e := range entriesOf("exit") {
		if !strings.Contains(string(b), " "+code+"  "+strings.Split(e.Meaning, "; trying")[0]) {
			t.Errorf("notifyctl help exit-codes does not say %s  %s", code, e.Meaning)
		}
	}
}

func TestEntriesAreWhole(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, e := range All() {
		if key := e.Kind + " " + e.Code; seen[key] && e.Kind != "class" && e.Kind != "error" {
			t.Errorf("%s is there twice", key)
		} else {
			seen[key] = true
		}
		if !strings.HasSuffix(e.Do, ".") || strings.HasSuffix(e.Meaning, ".") {
			t.Errorf("%s: the meaning has no full stop, what to do has one: %q, %q", e.Code, e.Meaning, e.Do)
		}
		if e.RetryWords() == "" {
			t.Errorf("%s: no words for retry %q", e.Code, e.Retry)
		}
	}
	for _, bad := range []string{"== error | x | no", "bad_json | no heading", "== error | w | no | Do.\nx", "== error | w | no | Do.\nx | y | z. | maybe", "== fault | w | no | Do."} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	f := func(code string, want ...string) {
		t.Helper()
		var got []string
		for _, e := range Find(code) {
			got = append(got, e.Kind+" "+e.Code)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", code, got, want)
		}
	}
	f("bad_json", "error bad_json")
	f(" urn:notifyd:bad_json", "error bad_json")
	f("http_503", "error http_<status>")
	f("twilio_21610", "error twilio_21610")
	f("twilio_99999", "error twilio_<number>")
	f("apns_circuit_open", "error <provider>_circuit_open")
	f("opted_out", "error opted_out", "class opted_out")
	f("7", "exit 7")
	f("FAILED", "state FAILED")
	f("nonsense")
	f("http_")
}

func TestNear(t *testing.T) {
	t.Parallel()
	f := func(code string, want ...string) {
		t.Helper()
		if got := Similar(code, term.Distance); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", code, got, want)
		}
	}
	f("bad_jsn", "bad_json")
	f("DELIVRED", "DELIVERED")
	f("delivered", "DELIVERED")
	f("zzzzzzzzzz")
}
