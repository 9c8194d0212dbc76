package term

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestExitCode(t *testing.T) {
	t.Parallel()
	f := func(err error, want int) {
		t.Helper()
		if got := ExitCode(err); got != want {
			t.Errorf("%v: got %d, want %d", err, got, want)
		}
	}
	f(nil, 0)
	f(errors.New("x"), 1)
	f(Usage("x"), 2)
	f(fmt.Errorf("a: %w", Exitf(9, "x")), 9)
	f(fmt.Errorf("a: %w", context.Canceled), 130)
	f(context.DeadlineExceeded, 7)
	for kind, want := range map[notify.Kind]int{
		notify.KindInvalid: 2, notify.KindTooLarge: 2, notify.KindUnauthorized: 4, notify.KindForbidden: 4,
		notify.KindNotFound: 5, notify.KindGone: 5, notify.KindConflict: 6, notify.KindMismatch: 6,
		notify.KindUnavailable: 7, notify.KindThrottled: 7, notify.KindInternal: 1, notify.KindPermanent: 1,
	} {
		f(&notify.Error{Kind: kind}, want)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	cause := errors.New("dial \x1b[31mred")
	err := &Error{Exit: 7, Err: &notify.Error{Kind: notify.KindUnavailable, Code: "no_answer", Field: "to", Msg: "nobody there", Err: cause}, Next: []string{"a", "b"}}
	f := func(format, want string) {
		t.Helper()
		var b strings.Builder
		Report(&b, err, format)
		if b.String() != want {
			t.Errorf("%s: got\n%swant\n%s", format, &b, want)
		}
	}
	f("table", "error: to: nobody there\n  code:  no_answer\n  why:   dial \\u001b[31mred\n  next:  a\n         b\n")
	f("json", `{"error":{"code":"no_answer","field":"to","message":"to: nobody there","why":"dial \u001b[31mred","hint":["a","b"],"exit":7,"retryable":true}}`+"\n")
}

func TestDistance(t *testing.T) {
	t.Parallel()
	f := func(a, b string, want int) {
		t.Helper()
		if Distance(a, b) != want || Distance(b, a) != want {
			t.Errorf("%s %s: got %d and %d, want %d", a, b, Distance(a, b), Distance(b, a), want)
		}
	}
	f("", "", 0)
	f("", "abc", 3)
	f("get", "gte", 1)
	f("send", "sedn", 1)
	f("kitten", "sitting", 3)
	f("doctor", "dcotro", 2)
}

func tree(args ...string) (string, error) {
	var out strings.Builder
	root := &cobra.Command{Use: "tool"}
	group := &cobra.Command{Use: "group"}
	run := func(*cobra.Command, []string) error { return nil }
	show := &cobra.Command{Use: "show ID", Args: Exact("an id"), RunE: run}
	show.Flags().String("limit", "", "")
	group.AddCommand(show, &cobra.Command{Use: "list", RunE: run, Aliases: []string{"ls"}}, &cobra.Command{Use: "replay", RunE: run, SuggestFor: []string{"redrive"}})
	root.AddCommand(group)
	Polish(root)
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.Execute()
	return out.String(), err
}

func TestPolish(t *testing.T) {
	t.Parallel()
	f := func(want string, args ...string) {
		t.Helper()
		_, err := tree(args...)
		if err == nil || ExitCode(err) != ExitUsage || err.Error() != want {
			t.Errorf("%v: got %v (%d), want %s", args, err, ExitCode(err), want)
		}
	}
	f(`unknown command "gruop" for "tool"; did you mean group?`, "gruop")
	f(`unknown command "xyz" for "tool"`, "xyz")
	f(`unknown command "shwo" for "tool group"; did you mean show?`, "group", "shwo")
	f(`unknown command "redrive" for "tool group"; did you mean replay?`, "group", "redrive")
	f(`unknown command "sl" for "tool group"; did you mean list?`, "group", "sl")
	f(`unknown command "grop" for "tool"; did you mean group?`, "help", "grop")
	f(`unknown command "bsh" for "tool completion"; did you mean bash or zsh?`, "completion", "bsh")
	f(`unknown flag: --limt; did you mean --limit?`, "group", "show", "--limt=3")
	f(`unknown flag: --max`, "group", "show", "--max=3")
	f(`tool group show needs an id`, "group", "show")
	f(`tool group list takes no arguments, got "x"`, "group", "list", "x")
	for _, args := range [][]string{{}, {"group"}, {"help", "group", "show"}, {"group", "--help"}} {
		if out, err := tree(args...); err != nil || !strings.Contains(out, "Usage:") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

func TestPrinter(t *testing.T) {
	t.Parallel()
	type item struct {
		Name string `json:"name"`
		N    int    `json:"n"`
	}
	items := []item{{"a\x1b[2J", 1}, {"<ö>", 22}}
	f := func(p *Printer, want string) {
		t.Helper()
		var b strings.Builder
		p.Out = &b
		table := Table{{"NAME", "N", "NOTE"}}
		for _, i := range items {
			table = append(table, []string{i.Name, fmt.Sprint(i.N), ""})
		}
		if err := p.Print(items, table); err != nil {
			t.Fatal(err)
		}
		if b.String() != want {
			t.Errorf("%+v: got\n%swant\n%s", p, &b, want)
		}
	}
	f(&Printer{Format: "table"}, "NAME        N   NOTE\na\\u001b[2J  1\n<ö>         22\n")
	f(&Printer{Format: "table", NoHeaders: true}, "a\\u001b[2J  1\n<ö>         22\n")
	paint := func(cell string, h Header) string {
		if h {
			return "*" + cell
		}
		return "_" + cell
	}
	f(&Printer{Format: "table", Paint: paint}, "*NAME        *N   *NOTE\n_a\\u001b[2J  _1\n_<ö>         _22\n")
	f(&Printer{Format: "jsonl"}, `{"name":"a\u001b[2J","n":1}`+"\n"+`{"name":"<ö>","n":22}`+"\n")
	f(&Printer{Format: "jsonl", JQ: ".n"}, "1\n22\n")
	f(&Printer{Format: "json"}, "{\n  \"items\": [\n    {\n      \"name\": \"a\\u001b[2J\",\n      \"n\": 1\n    },\n    {\n      \"name\": \"<ö>\",\n      \"n\": 22\n    }\n  ]\n}\n")
	f(&Printer{Format: "yaml"}, "items:\n  - \"n\": 1\n    name: \"a\\e[2J\"\n  - \"n\": 22\n    name: <ö>\n")
	f(&Printer{Format: "table", JQ: ".items[] | .name, .n"}, "a\x1b[2J\n1\n<ö>\n22\n")
	f(&Printer{Format: "table", Width: 80, JQ: ".items[] | .name, .n"}, `a\u001b[2J`+"\n1\n<ö>\n22\n")
	items = nil
	f(&Printer{Format: "json"}, "{\n  \"items\": []\n}\n")
	f(&Printer{Format: "jsonl"}, "")
	var b strings.Builder
	p := &Printer{Format: "table", Out: &b}
	if err := p.Record(nil, Table{{"name", "x"}, {"empty", ""}, {"n", "1"}}); err != nil || b.String() != "name  x\nn     1\n" {
		t.Errorf("record: %v\n%s", err, &b)
	}
}

// What a name holds that would steer a terminal, or turn text around so that it
// passes for another name, is shown as an escape, in every format; JSON keeps
// its meaning.
func TestNamesAreShownAsTheyAre(t *testing.T) {
	t.Parallel()
	const name = "ann\u202egnp\u009b31m\u2066\x7f"
	hidden := func(s string) bool { return notify.HasControl(strings.ReplaceAll(s, "\n", "")) }
	v := []map[string]string{{"id": name}}
	for _, p := range []Printer{{Format: "table"}, {Format: "json"}, {Format: "jsonl"}, {Format: "yaml"}, {Format: "json", JQ: "."}} {
		var b strings.Builder
		p.Out = &b
		if err := p.Print(v, Table{{"ID"}, {name}}); err != nil {
			t.Fatal(err)
		}
		if hidden(b.String()) {
			t.Errorf("%s: %q", p.Format, &b)
		}
		var back struct{ Items []map[string]string }
		switch p.Format {
		case "json":
			_ = json.Unmarshal([]byte(b.String()), &back)
		case "yaml":
			_ = yaml.Unmarshal([]byte(b.String()), &back)
		default:
			continue
		}
		if len(back.Items) != 1 || back.Items[0]["id"] != name {
			t.Errorf("%s: %q was read back as %q", p.Format, &b, back)
		}
	}
	var b strings.Builder
	p := Printer{Format: "table", Out: &b}
	if err := p.Record(nil, Table{{"user", name}}); err != nil || hidden(b.String()) || !strings.Contains(b.String(), `ann\u202egnp\u009b31m`) {
		t.Errorf("record %q, %v", &b, err)
	}
	for _, format := range []string{"table", "json"} {
		b.Reset()
		Report(&b, &Error{Err: notify.Invalid("c\u202e", "f\u202e", name), Next: []string{"why " + name}}, format)
		if hidden(b.String()) {
			t.Errorf("report %q", &b)
		}
	}
	if got := Clean("a\r\nb\tc\xff"); got != `a  b c\xff` {
		t.Errorf("%q", got)
	}
}

func TestContexts(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	getenv := func(name string) string {
		if name == "HOME" {
			return home
		}
		return ""
	}
	open := func() *Contexts {
		c, err := OpenContexts(getenv)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := open()
	if c.Current() != "" || len(c.Names()) != 0 {
		t.Errorf("fresh: %q %v", c.Current(), c.Names())
	}
	for _, name := range []string{"one", "two"} {
		if err := errors.Join(c.Set(name, Context{Server: "http://" + name}), c.Use(name)); err != nil {
			t.Fatal(err)
		}
	}
	c = open()
	if c.Current() != "two" || c.Previous() != "one" || c.List["one"].Server != "http://one" {
		t.Errorf("%q after %q: %v", c.Current(), c.Previous(), c.List)
	}
	if err := c.Use("tow"); ExitCode(err) != ExitNotFound || !strings.Contains(err.Error(), `did you mean "two"?`) {
		t.Errorf("got %v", err)
	}
	if err := c.Remove("one"); err != nil {
		t.Fatal(err)
	}
	if got := open().Names(); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
}

// TestFit: a table is made as narrow as the terminal, and no narrower; without
// one nothing is cut.
func TestFit(t *testing.T) {
	t.Parallel()
	f := func(width int, want string) {
		t.Helper()
		var b strings.Builder
		p := Printer{Out: &b, Format: "table", Width: width, Optional: []string{"KIND", "none", "N"}}
		if err := p.Print(nil, Table{{"ID", "KIND", "N", "URL"}, {"a1", "short", "1", "https://x.example/hooks"}, {"a2", "k", "22", ""}}); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); got != want {
			t.Errorf("%d columns:\n%s\nwant\n%s", width, got, want)
		}
	}
	whole := "ID  KIND   N   URL\na1  short  1   https://x.example/hooks\na2  k      22\n"
	f(0, whole)
	f(38, whole)
	f(37, "ID  N   URL\na1  1   https://x.example/hooks\na2  22\n")
	f(30, "ID  URL\na1  https://x.example/hooks\na2\n")
	f(14, "ID  URL\na1  https://x\u2026\na2\n")
	f(11, "ID  URL\na1  https://x.example/hooks\na2\n") // less would say nothing
}
