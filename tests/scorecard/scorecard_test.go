package main

import (
	"context"
	"encoding/json"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	tortureLine = "torture kills=5 accepted=100 terminal=100 lost=0 duplicates=4 bound=5 reordered=0 unknown=0 failed=0 ambiguous=1 later=9 early=0 nonterminal=0 cancelled_fired=0 later_lost=0 called_twice=1 called_twice_bound=2 unclaimed=0 bad_signatures=0 drift=0 ok=true"
	outageLine  = "outage minutes=0.25 due=5000 fired=5000 lost=0 early=0 drain_s=3.1 bound_s=8.5 ontime=90 ontime_p50_ms=3.0 ontime_p99_ms=20.5 ontime_max_ms=40.1 ontime_bound_ms=1000 duplicates=0 open=0 load=1.2 ok=true"
	replayLine  = "replay letters=10000 plan_ms=50 canary=20 kills=3 client_kills=3 asked=1000 reached=900 replayed=10000 skipped=0 exhausted=0 failed=0 planned=10000 delivered=9980 lost=0 duplicates=3 bound=9 audit_rows=4 ok=true"
	benchLine   = `[{"id":"P7","work":"timers parked","value":1,"unit":"timers/s","need":"","pass":null},
{"id":"P7","work":"lateness at 50K releases/s for 5 s, p99; p50 0.7 p99.9 64.5 max 73.2 ms, 0 early; 0.25 cores; ref: a bare sleeper beside it, max 11.9 ms","value":27.3,"unit":"ms","reference":2.06,"need":"< 50 ms","pass":true}]`
)

// proofs returns an execution that runs no command. It prints the closing line of a proof that
// passes. If replace has a line for the proof, it prints that line instead.
func proofs(t *testing.T, replace map[string]string) execution {
	return func(_ context.Context, command []string, _ io.Writer) ([]byte, int, error) {
		name := strings.TrimPrefix(command[2], "./tests/")
		text := map[string]string{"bench": benchLine, "torture": tortureLine, "outage": outageLine, "replay": replayLine}[name]
		if other, ok := replace[name]; ok {
			text = other
		}
		if name == "bench" {
			if err := os.WriteFile(command[slices.Index(command, "-out")+1], []byte(text), 0o600); err != nil {
				t.Error(err)
			}
			return nil, 1, nil // as if another figure of bench missed its limit
		}
		exit := 0
		if !strings.HasSuffix(text, "ok=true") {
			exit = 1
		}
		return []byte(name + "  seed=1\n" + text + "\n"), exit, nil
	}
}

func score(t *testing.T, replace map[string]string) (pass bool, dir, out string) {
	t.Helper()
	dir = t.TempDir()
	o := options{minutes: 5, out: dir}
	var b strings.Builder
	pass, err := o.run(t.Context(), &b, proofs(t, replace))
	if err != nil {
		t.Fatal(err)
	}
	return pass, dir, b.String()
}

// TestScorecard checks the signed file, the page and the last line of a run that passes.
func TestScorecard(t *testing.T) {
	t.Setenv("NOTIFY_TEST_KAFKA", "")
	pass, dir, out := score(t, nil)
	if !pass || !regexp.MustCompile(`(?m)^scorecard commit=\S* changed=\S+ seconds=\d+ lateness=true late_p99_ms=27.3 torture=true take-over=true replay=true file=\S+ signer=\S+ ok=true$`).MatchString(out) {
		t.Errorf("%t\n%s", pass, out)
	}
	file := filepath.Join(dir, "scorecard.json")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	card, err := verify(b, "")
	if err != nil || len(card.Parts) != 4 || len(card.Parts[0].Figures) != 6 || !card.Pass {
		t.Fatalf("%+v, %v", card, err)
	}
	info, err := os.Stat(filepath.Join(dir, "scorecard.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "scorecard.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"every promise holds", "late, p99", "27.3 ms", "a bare sleeper, p99", "2.06 ms", "< 50 ms", "sent again", "torture kills=5", card.Signer[:20]} {
		if !strings.Contains(html.UnescapeString(string(page)), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if found := regexp.MustCompile(`(?i)(https?:)?//[a-z]|ZgotmplZ|<script|<link`).FindString(string(page)); found != "" {
		t.Errorf("the page needs %q", found)
	}

	// A second card signed with the same key file names the same signer.
	again, err := openKey(filepath.Join(dir, "scorecard.key"))
	if err != nil {
		t.Fatal(err)
	}
	other := Card{Schema: 1}
	if _, err := other.sign(again); err != nil || other.Signer != card.Signer {
		t.Errorf("signed by %s and by %s, %v", card.Signer, other.Signer, err)
	}
	var told strings.Builder
	if ok, err := (&options{verify: file, signer: card.Signer}).run(t.Context(), &told, nil); !ok || err != nil || !strings.Contains(told.String(), "signature=true") {
		t.Errorf("%v, %s", err, told.String())
	}
	if ok, err := (&options{verify: file, signer: "AAAA"}).run(t.Context(), &told, nil); ok || err == nil {
		t.Error("another signer was taken")
	}
}

// TestChangedFileIsFound checks that verify refuses a file that was changed in any place.
func TestChangedFileIsFound(t *testing.T) {
	t.Setenv("NOTIFY_TEST_KAFKA", "")
	_, dir, _ := score(t, nil)
	b, err := os.ReadFile(filepath.Join(dir, "scorecard.json"))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := openKey(filepath.Join(t.TempDir(), "k"))
	if err != nil {
		t.Fatal(err)
	}
	other := Card{}
	if _, err := other.sign(elsewhere); err != nil {
		t.Fatal(err)
	}
	var card Card
	if err := json.Unmarshal(b, &card); err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{`"value": 27.3`, `"value": 7.3`}, {`"pass": true`, `"pass": false`}, {`"schema": 1`, `"schema": 1, "note": "faster"`},
		{card.Signer, other.Signer}, {`"minutes": 5`, `"minutes": 500`}, {"lost=0", "lost=1"},
	} {
		changed := strings.Replace(string(b), change[0], change[1], 1)
		if changed == string(b) {
			t.Fatalf("there is no %s", change[0])
		}
		if _, err := verify([]byte(changed), ""); err == nil {
			t.Errorf("%s for %s was taken", change[1], change[0])
		}
	}
}

// TestBrokenPromisesAreFound checks that a figure outside its limit breaks the promise, and that a
// missing figure also breaks it, even if the proof's closing line has ok=true.
func TestBrokenPromisesAreFound(t *testing.T) {
	t.Setenv("NOTIFY_TEST_KAFKA", "")
	for _, c := range []struct{ proof, was, is string }{
		{"torture", "lost=0", "lost=1"}, {"torture", "duplicates=4", "duplicates=6"}, {"torture", "terminal=100", "terminal=99"},
		{"torture", " early=0", " early=1"}, {"torture", " drift=0", ""}, {"torture", "ok=true", "ok=false"}, {"torture", tortureLine, ""},
		{"outage", "fired=5000", "fired=4999"}, {"outage", "drain_s=3.1", "drain_s=9"},
		{"replay", "replayed=10000", "replayed=9999"}, {"replay", "delivered=9980", "delivered=9979"},
		{"bench", `"pass":true`, `"pass":false`}, {"bench", "0 early", "1 early"}, {"bench", "lateness at", "else"},
	} {
		line := map[string]string{"torture": tortureLine, "outage": outageLine, "replay": replayLine, "bench": benchLine}[c.proof]
		pass, dir, out := score(t, map[string]string{c.proof: strings.Replace(line, c.was, c.is, 1)})
		if pass || !strings.Contains(out, " ok=false") {
			t.Errorf("%s with %q passes", c.proof, c.is)
		}
		if page, err := os.ReadFile(filepath.Join(dir, "scorecard.html")); err != nil || !strings.Contains(string(page), "a promise is broken") {
			t.Errorf("%s with %q: the page does not say so, %v", c.proof, c.is, err)
		}
	}
}

func TestPartsTakeTheTimeAskedFor(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	there := func(string) string { return "127.0.0.1:1" }
	command := func(minutes float64, only string, getenv func(string) string) string {
		ps, err := partsOf(minutes, only, getenv)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for i := range ps {
			out = append(out, strings.Join(ps[i].command[1:], " "))
		}
		return strings.Join(out, "; ")
	}
	if got, want := command(1, "", none), "run ./tests/bench -only P7 -short; run ./tests/torture -kills 4; run ./tests/outage -n 5000 -stop 15s; run ./tests/replay -letters 10000 -rate 1000 -kills 3"; got != want {
		t.Errorf("a minute:\n%s, want\n%s", got, want)
	}
	if got, want := command(60, "torture take-over", none), "run ./tests/torture -kills 280; run ./tests/outage -n 90000 -stop 9m0s"; got != want {
		t.Errorf("an hour:\n%s, want\n%s", got, want)
	}
	if got := command(5, "take-over-servers", there); got != "ONLY=leader SHORT=1 scripts/faults.sh" {
		t.Errorf("with servers: %s", got)
	}
	if _, err := partsOf(5, "take-over-servers", none); err == nil {
		t.Error("a proof whose servers do not run was taken")
	}
}
