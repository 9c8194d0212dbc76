package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMoreKeepsTheQuestion: the command for the next page asks the same question.
func TestMoreKeepsTheQuestion(t *testing.T) {
	t.Parallel()
	f := func(want string, args ...string) {
		t.Helper()
		var said strings.Builder
		p := &program{now: time.Now, getenv: func(string) string { return "" }, err: &said}
		root := newRoot(p)
		c, rest, err := root.Find(args)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.ParseFlags(rest); err != nil {
			t.Fatal(err)
		}
		p.running, p.args = c, c.Flags().Args()
		p.noteNextPage(3, "NEXT")
		if got := strings.TrimSpace(said.String()); got != "for the next page: "+want+" --cursor NEXT" {
			t.Errorf("%q, want %q", got, want)
		}
		// It reads back as it was meant.
		again, err := c.Flags().GetInt("limit")
		if err != nil || again == 0 {
			t.Errorf("limit %d, %v", again, err)
		}
		if slices.Contains(strings.Fields(want), "--cursor") {
			t.Error("the old cursor is still there")
		}
	}
	f("notifyctl schedule ls --limit 3 --user ann", "schedule", "ls", "--user", "ann", "--limit", "3", "--cursor", "old")
	f("notifyctl schedule ls --status CANCELLED", "schedule", "ls", "--status", "CANCELLED")
	f("notifyctl trigger ls --output json --status FAILED", "trigger", "ls", "--status", "FAILED", "-o", "json")
	f("notifyctl ls ann --limit 2", "ls", "ann", "--limit", "2")
	f("notifyctl dlq ls --since=-2h --where '.code == \"x\"'", "dlq", "ls", "--since", "-2h", "--where", `.code == "x"`)
	f("notifyctl dlq ls --context prod --id ntf_1 --id ntf_2", "--context", "prod", "dlq", "ls", "--id", "ntf_1,ntf_2")
}
