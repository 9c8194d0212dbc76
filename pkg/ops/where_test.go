package ops

import (
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestWhereSelectsAndMakesNothing: an expression may come from whoever looks, and
// one step of jq may take any memory. What could is refused before it runs.
func TestWhereSelectsAndMakesNothing(t *testing.T) {
	t.Parallel()
	refused := []string{
		`reduce range(40) as $i (1; [., .]) | tojson | length > 0`, // 2^40 values, written by one step
		`reduce range(40) as $i (1; [., .]) | . == .`,              // compared by one step
		`reduce .[] as $x (1; .)`,
		`foreach .[] as $x (1; .)`,
		`[] | .[500000000] = 1 | length > 0`,
		`.code |= "x" | true`,
		`.code += "x" | true`,
		`.code //= "x" | true`,
		`"x" * 1000000000 | length > 0`,
		`"\(.)\(.)" | length > 0`,
		`.["\(.code)"] == 1`,
		`[., .] | length > 0`,
		`[.[], .[]] | length > 0`,
		`[["x", .]] | length > 0`, `[.code] | length > 0`,
		`{a: ., b: .} | length > 0`,
		`@base64 "\(.)" | length > 0`,
		`.code | @json | length > 0`,
		`def f: f; f`,
		`.code == (def f: f; f)`,
		`label $x | break $x`,
		`repeat(.)`, `range(9)`, `limit(1; .)`, `map(.)`, `tojson`, `add`, `to_entries`, `walk(.)`, `env`, `input`, `halt`, `debug`, `setpath(["a"]; 1)`,
		`splits("x")`, `gsub("x"; "xx")`, `implode`, `$ENV`, `ltrimstr(reduce .[] as $x (1; .))`, `. as [$a] | true`,
		`.code[reduce .[] as $x (1; .)]`, `if reduce .[] as $x (1; .) then true else false end`, `if true then true elif (def f: f; f) then true end`,
		`try (reduce .[] as $x (1; .)) catch true`, `-(reduce .[] as $x (1; .)) == 1`,
		`test(.code)`, `test("x"; .code)`, `test("` + strings.Repeat("x", maxRegexp+1) + `")`,
		`.code` + strings.Repeat(` + .code`, maxSums+1) + ` == ""`,
	}
	for _, expr := range refused {
		_, err := (&Filter{Where: expr}).Matcher()
		wantCode(t, err, notify.KindInvalid, "bad_where")
		if err == nil {
			t.Errorf("%s was taken", expr)
		}
	}
	d := engine.DeadLetter{
		ID: notify.ID{Base: notify.NewBase(time.Now())}, Channel: "sms", Code: "30003", Caller: "shop", User: "Ann", Attempts: 3,
		Extra: map[string]any{"carrier": "x-net"},
	}
	for expr, want := range map[string]bool{
		`.code | startswith("3")`:                     true,
		`.code == "30003" and .attempts >= 2 + 1`:     true,
		`.code | IN("30001", "30003")`:                true,
		`.code | test("^3[0-9]+3$")`:                  true,
		`.user_id | ascii_downcase == "ann"`:          true,
		`any(.[]?; . == "shop")`:                      true,
		`.code as $c | .user_id | contains($c) | not`: true,
		`if .attempts > 5 then true elif .caller == "shop" then (.code != null) else false end`: true,
		`.nothing // "x" | . == "x"`:                      true,
		`(.attempts | tostring) as $a | $a + "!" == "3!"`: true,
		`.code | inside("x30003y")`:                       true,
		`try (.code | tonumber > 1) catch false`:          true,
		`.. | select(. == "shop") | true`:                 true,
		`-.attempts < 0`:                                  true,
		`.code | IN(["30003", "b"][])`:                    true,
	} {
		match, err := (&Filter{Where: expr}).Matcher()
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		got, err := match(t.Context(), &d)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v", expr, got, err)
		}
	}
}

// TestWhereEnds: what is short for one letter may be long for all of them.
func TestWhereEnds(t *testing.T) {
	t.Parallel()
	m, err := (&Filter{Where: ".code == null"}).compile()
	if err != nil {
		t.Fatal(err)
	}
	d := engine.DeadLetter{ID: notify.ID{Base: notify.NewBase(time.Now())}}
	if _, err := m.matches(t.Context(), &d); err != nil {
		t.Fatal(err)
	}
	m.looked, m.spent = 3000, whereStart+3001*whereEach
	_, err = m.matches(t.Context(), &d)
	wantCode(t, err, notify.KindInvalid, "bad_where")
}
