package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/report"
)

// Every command a newcomer meets first shows how it is used, and no line of its
// help that was written by hand is wider than a terminal.
func TestHelpHasExamples(t *testing.T) {
	t.Parallel()
	root := newRoot(&program{now: time.Now, getenv: func(string) string { return "" }})
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		if c.Runnable() && !c.HasSubCommands() && c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Long) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 88 {
				t.Errorf("%s: a line of its help has %d columns: %s", c.CommandPath(), n, line)
			}
		}
		for line := range strings.Lines(c.Example) {
			if !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: an example is not indented: %s", c.CommandPath(), line)
			}
		}
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	for _, c := range root.Commands() {
		switch c.Name() {
		case "send", "schedule", "reschedule", "trigger", "cancel", "user", "show", "ls", "campaign", "caller", "context":
			look(c)
		}
	}
}

// TestCompareNamesItsFigures: the help and docs/load.md name every figure that load
// compare judges.
func TestCompareNamesItsFigures(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/load.md")
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := newRoot(&program{now: time.Now, getenv: func(string) string { return "" }}).Find([]string{"load", "compare"})
	if err != nil {
		t.Fatal(err)
	}
	run := load.Result{Steps: make([]load.StepResult, 1)}
	run.Steps[0].EndToEnd.Count = 1
	run.Ledger.Checked = true
	figures := report.Compare(&run, &run, report.Rules{}).Rows
	if len(figures) < 20 {
		t.Fatalf("%d figures", len(figures))
	}
	for _, row := range figures {
		name, _, _ := strings.Cut(row.Figure, " p") // without the percentile
		for where, text := range map[string]string{"--help": c.Long, "docs/load.md": string(doc)} {
			if !strings.Contains(text, name) {
				t.Errorf("load compare judges %q, and %s does not say so", name, where)
			}
		}
	}
}

// TestFilesHaveTwoForms: what takes NDJSON and a JSON array says both.
func TestFilesHaveTwoForms(t *testing.T) {
	t.Parallel()
	root := newRoot(&program{now: time.Now, getenv: func(string) string { return "" }})
	for _, path := range [][]string{{"send"}, {"trigger", "create"}} {
		c, _, err := root.Find(path)
		if err != nil {
			t.Fatal(err)
		}
		if use := c.Flags().Lookup("file").Usage; !strings.Contains(use, "NDJSON or a JSON array") {
			t.Errorf("%s -f: %s", c.CommandPath(), use)
		}
	}
}
