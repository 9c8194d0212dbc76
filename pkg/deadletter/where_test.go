package deadletter

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
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
	}
	for _, expr := range refused {
		_, err := NewMatcher(&api.LetterFilter{Where: expr})
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
		`.attempts - 1 == 2 and .attempts / 2 == 1.5`:     true,
		`.attempts % 2 == 1`:                              true,
		`.user_id | index("n") == 1 and rindex("n") == 2`: true,
		`["a", "b"] | contains(["b"])`:                    true,
		`["b"] | inside(["a", "c"])`:                      false,
		`"[1,2]" | fromjson | length == 2`:                true,
		`.extra.carrier | contains("net")`:                true,
	} {
		match, err := NewMatcher(&api.LetterFilter{Where: expr})
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		got, err := match.Matches(t.Context(), &d)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v", expr, got, err)
		}
	}
}

// TestWhereEnds: what is short for one letter may be long for all of them.
func TestWhereEnds(t *testing.T) {
	t.Parallel()
	m, err := NewMatcher(&api.LetterFilter{Where: ".code == null"})
	if err != nil {
		t.Fatal(err)
	}
	d := engine.DeadLetter{ID: notify.ID{Base: notify.NewBase(time.Now())}}
	if _, err := m.Matches(t.Context(), &d); err != nil {
		t.Fatal(err)
	}
	m.evaluated, m.evalTime = 3000, whereStart+3001*whereEach
	_, err = m.Matches(t.Context(), &d)
	wantCode(t, err, notify.KindInvalid, "bad_where")
}

// TestWhereIsBoundedWhenItRuns: what an operator makes depends on what its operands
// are. These expressions took minutes or gigabytes; each must fail within its deadline.
func TestWhereIsBoundedWhenItRuns(t *testing.T) { // not parallel: TotalAlloc counts the whole process
	e := `tostring|./""|tostring|./""|tostring|./""|tostring|./""|tostring`
	m := e + strings.Repeat(`|(. as $v|$v+$v)`, 7) + `|./""|length>0`
	for _, expr := range []string{
		"(" + e + `|./"") - (` + e + `|./",") | length>=0`,
		m,
		`.user_id | ./"" | length > 0`,
		`.extra | tostring | length > 0`,
		`["a"] - ["a"] | length == 0`,
		`["a"] + ["a"] | length == 2`,
		`.user_id | (. as $v | $v+$v)` + strings.Repeat(`|(. as $v | $v+$v)`, 30) + ` | length > 0`,
		`.body | fromjson | length > 0`,
		`.big | tonumber > 0`,
		`.extra.list | contains(.)`,
		`.extra.list | . as $l | inside($l)`,
		`.extra.list as $l | $l | index($l) == 0`,
		`"%x" % 3 == 0`,
	} {
		match, err := NewMatcher(&api.LetterFilter{Where: expr})
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		list := make([]any, 50_000)
		for i := range list {
			list[i] = i
		}
		list[0] = "an end that is not found early"
		d := engine.DeadLetter{
			ID: notify.ID{Base: notify.NewBase(time.Now())}, User: strings.Repeat("u", 100),
			Extra: map[string]any{"list": list},
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		_, err = match.Matches(t.Context(), &d)
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		wantCode(t, err, notify.KindInvalid, "bad_where")
		if made := (after.TotalAlloc - before.TotalAlloc) >> 20; made > 200 || took > 30*time.Second {
			t.Errorf("%.60s: made %d MiB in %v", expr, made, took)
		}
	}
}

// TestWhereRunsFewAtOnce: an expression takes a core for as long as it runs.
func TestWhereRunsFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer func(c chan struct{}) { whereSlots = c }(whereSlots)
		whereSlots = make(chan struct{}, maxWhereAtOnce)
		for range maxWhereAtOnce {
			if _, err := enterWhere(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		match, err := NewMatcher(&api.LetterFilter{Where: `.code == "x"`})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := match.Matches(ctx, &engine.DeadLetter{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one more ran beside %d: %v", maxWhereAtOnce, err)
		}
	})
}
