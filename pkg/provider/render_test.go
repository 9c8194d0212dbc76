package provider

import (
	"encoding/json"
	"html"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestRender(t *testing.T) {
	t.Parallel()
	f := func(text string, enc Encoding, shared, own, want string) {
		t.Helper()
		v, err := SharedVariables([]byte(shared))
		if err == nil {
			err = v.SetOwn([]byte(own))
		}
		var got []byte
		if err == nil {
			tpl := ParseTemplate(text, enc)
			got, err = tpl.Append([]byte(">"), &v, math.MaxInt)
		}
		if err != nil {
			got = []byte(">!" + err.(*notify.Error).Code)
		}
		if string(got) != ">"+want {
			t.Errorf("%q with %s and %s: %q, want %q", text, shared, own, got[1:], want)
		}
	}
	f("", Plain, "", "", "")
	f("plain", Plain, "", "", "plain")
	f("{{a}}", Plain, `{"a":"x"}`, "", "x")
	f("{{a}}", Plain, `{"a":"x"}`, `{"a":"y"}`, "y")
	f("1{{ a }}2{{b}}3", Plain, `{"a":"x"}`, `{"b":"y"}`, "1x2y3")
	f("{{n}} {{t}} {{f}}", Plain, `{"n":-1.50e2,"t":true,"f":false}`, "", "-1.50e2 true false")
	f("{{a}}{{a}}", Plain, `{"a":"\u00e9\"\\\n"}`, "", "é\"\\\né\"\\\n")
	f("{{a_b-c.9}}", Plain, `{"a_b-c.9":"x"}`, "", "x")
	// what is no placeholder is text
	f("{{", Plain, "", "", "{{")
	f("{{a", Plain, `{"a":1}`, "", "{{a")
	f("{{}} {{ }} {{a b}} {{é}}", Plain, `{"a":1}`, "", "{{}} {{ }} {{a b}} {{é}}")
	f("{{{a}}}", Plain, `{"a":1}`, "", "{1}")
	f("{{x{{a}}", Plain, `{"a":1}`, "", "{{x1")
	// a value is never looked at for placeholders
	f("{{a}}", Plain, `{"a":"{{b}}","b":"no"}`, "", "{{b}}")
	f("<b>{{a}}</b>", HTML, "", `{"a":"<i>'\"&"}`, "<b>&lt;i&gt;&#39;&#34;&amp;</b>")
	f("a\"{{a}}\"", JSON, "", `{"a":"\"\u0001\t"}`, `a\"\"\u0001\t\"`)
	// errors
	f("{{a}}", Plain, "", "", "!missing_variable")
	f("{{a}}", Plain, `{"b":1}`, `{"c":1}`, "!missing_variable")
	f("{{a}}", Plain, `{"a":null}`, "", "!bad_variable")
	f("{{a}}", Plain, `{"a":[1]}`, "", "!bad_variable")
	f("{{a}}", Plain, "", `{"a":{"b":1}}`, "!bad_variable")
	f("{{b}}", Plain, `{"a":{"b":[1,{}]},"b":2}`, "", "2")
	for _, bad := range []string{"[]", "1", `"a"`, "{", `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1,"a":2}`, `{"a":1}x`, `{"a":1}{}`, `{a:1}`, "{\"a\":\"\xff\"}", `{"a":01}`, "{\"a\":\"\n\"}"} {
		f("x", Plain, bad, "", "!bad_variables")
		f("x", Plain, "", bad, "!bad_variables")
	}
	f("{{a}}", Plain, "", ` { "a" : "x" } `, "x")
	f("{{a}}", Plain, "", `{"\u0061":"x"}`, "x")
}

// Values that outgrow the buffer of decoded strings must not lose earlier ones.
func TestVariablesKeepText(t *testing.T) {
	t.Parallel()
	var v Variables
	long := strings.Repeat(`\n`, 1000)
	for range 3 {
		if err := v.SetOwn([]byte(`{"a":"1\t","b":"` + long + `","c":"3\t"}`)); err != nil {
			t.Fatal(err)
		}
		tpl := ParseTemplate("{{a}}{{b}}{{c}}", Plain)
		got, err := tpl.Append(nil, &v, math.MaxInt)
		if want := "1\t" + strings.Repeat("\n", 1000) + "3\t"; err != nil || string(got) != want {
			t.Fatalf("%q %v", got, err)
		}
	}
}

func TestAppendObject(t *testing.T) {
	t.Parallel()
	v, err := SharedVariables([]byte(`{"a":1,"b":{"c":null}}`))
	if err != nil {
		t.Fatal(err)
	}
	f := func(own string, as valueForm, want string, any bool) {
		t.Helper()
		if err := v.SetOwn([]byte(own)); err != nil {
			t.Fatal(err)
		}
		got, n := v.appendObject(nil, as)
		if string(got) != want || n != any || !json.Valid(got) {
			t.Errorf("%s: %s %v", own, got, n)
		}
	}
	f("", asGiven, `{"a":1,"b":{"c":null}}`, true)
	f(`{"a":"x\n"}`, asGiven, `{"a":"x\n","b":{"c":null}}`, true)
	f(`{"z":true}`, asStrings, `{"z":"true","a":"1","b":"{\"c\":null}"}`, true)
	var none Variables
	if got, any := none.appendObject(nil, asGiven); string(got) != "{}" || any {
		t.Errorf("%s %v", got, any)
	}
}

func FuzzRender(f *testing.F) {
	f.Add("{{a}} {{b}}", `{"a":1,"b":"x"}`, `{"a":"<\u0000>"}`)
	f.Add("{{{a}}}{{", `{}`, ``)
	f.Add("\xff{{a}}", `{"a":"\ud83d\ude00"}`, `{"a":[]}`)
	f.Fuzz(func(t *testing.T, text, shared, own string) {
		v, err := SharedVariables([]byte(shared))
		if (err == nil) != isObject(shared) && shared != "" && utf8.ValidString(shared) && !hasDuplicates(shared) {
			t.Fatalf("shared %q: %v", shared, err)
		}
		if err != nil || v.SetOwn([]byte(own)) != nil {
			return
		}
		plain := ParseTemplate(text, Plain)
		got, err := plain.Append(nil, &v, math.MaxInt)
		if plain.Static() && (err != nil || string(got) != text) {
			t.Fatalf("a static text changed: %q %v", got, err)
		}
		j := ParseTemplate(text, JSON)
		quoted, jerr := j.Append([]byte{'"'}, &v, math.MaxInt)
		if (err == nil) != (jerr == nil) {
			t.Fatalf("%v but %v", err, jerr)
		}
		if err != nil {
			return
		}
		var back string
		if err := json.Unmarshal(append(quoted, '"'), &back); err != nil {
			t.Fatalf("not JSON: %q", quoted)
		}
		// (text and values are made valid one by one)
		if utf8.ValidString(text) && back != string(got) {
			t.Fatalf("%q is not %q", back, got)
		}
		h := ParseTemplate(text, HTML)
		escaped, herr := h.Append(nil, &v, math.MaxInt)
		if herr != nil || (!strings.Contains(text, "&") && html.UnescapeString(string(escaped)) != string(got)) {
			t.Fatalf("%q is not %q (%v)", escaped, got, herr)
		}
	})
}

func isObject(s string) bool {
	var m map[string]json.RawMessage
	return json.Unmarshal([]byte(s), &m) == nil && m != nil
}

// hasDuplicates reports duplicate names and other input that only the strict parser refuses.
func hasDuplicates(s string) bool {
	_, _, err := parseVariables(nil, nil, []byte(s))
	return err != nil && isObject(s)
}

func TestIDText(t *testing.T) {
	t.Parallel()
	var w idText
	for _, id := range []notify.ID{{}, {Base: testBase}, {Base: testBase, Index: 7, FanOut: true}, {Base: testBase, FanOut: true}, {Base: notify.Base{1}, Index: 9}} {
		if got := string(w.append([]byte(">"), id)); got != ">"+id.String() {
			t.Errorf("%s is not %s", got, id)
		}
	}
}
