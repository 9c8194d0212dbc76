package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
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
