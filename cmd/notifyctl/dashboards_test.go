package main

import (
	"encoding/json"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/dashboards"
	"github.com/notifyd/notifyd/pkg/tool/promcheck"
)

func carriedFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := fs.ReadFile(dashboards.Files(), name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAlertsAndRunbooks: every alert links a runbook that is there and a dashboard
// that is there, and every runbook is of an alert.
func TestAlertsAndRunbooks(t *testing.T) {
	t.Parallel()
	list, err := embeddedFiles()
	if err != nil {
		t.Fatal(err)
	}
	uids, books := map[string]bool{}, map[string]bool{}
	for _, f := range list {
		switch path.Ext(f.File) {
		case ".json":
			var d struct{ UID string }
			if err := json.Unmarshal(carriedFile(t, f.File), &d); err != nil {
				t.Fatal(err)
			}
			uids[d.UID] = true
		case ".md":
			books[strings.TrimSuffix(path.Base(f.File), ".md")] = false
		}
	}
	for _, f := range list {
		if path.Ext(f.File) != ".yml" {
			continue
		}
		rules, err := promcheck.ReadRules(carriedFile(t, f.File))
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				if r.Alert == "" {
					continue
				}
				if want := dashboards.Runbooks + r.Alert + ".md"; r.Annotations["runbook_url"] != want {
					t.Errorf("%s links %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
				}
				if _, ok := books[r.Alert]; !ok {
					t.Errorf("%s has no runbook", r.Alert)
				}
				books[r.Alert] = true
				if uid := r.Annotations["dashboard"]; !uids[uid] {
					t.Errorf("%s names dashboard %q, which does not exist", r.Alert, uid)
				}
			}
		}
	}
	for name, used := range books {
		if !used {
			t.Errorf("runbook %s is of no alert", name)
		}
	}
}

var (
	headings  = []string{"## What it means", "## Impact", "## First looks", "## Repair"}
	inBlock   = regexp.MustCompile(`(?m)^ {4}(notifyctl [^#\n]*)`)
	inText    = regexp.MustCompile("`(notifyctl [^`]*)`")
	bookNames = regexp.MustCompile(`Notifyd[A-Z][A-Za-z]+`)
)

// TestRunbooks: every runbook says what it should, its commands and flags exist,
// and so do the alerts it sends the reader on to.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(dashboards.Files(), "runbooks/*.md")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d runbooks, %v", len(names), err)
	}
	for _, name := range names {
		text := string(carriedFile(t, name))
		at := 0
		for _, h := range headings {
			next := strings.Index(text, "\n"+h+"\n")
			if next < at {
				t.Errorf("%s: %q is missing or out of order", name, h)
			}
			at = next
		}
		commands := inBlock.FindAllStringSubmatch(text, -1)
		if len(commands) == 0 {
			t.Errorf("%s names no command to look with", name)
		}
		commands = append(commands, inText.FindAllStringSubmatch(strings.ReplaceAll(text, "\n  ", " "), -1)...)
		for _, c := range commands {
			if problem := commandProblem(c[1]); problem != "" {
				t.Errorf("%s: %s: %s", name, strings.TrimSpace(c[1]), problem)
			}
		}
		for _, other := range bookNames.FindAllString(text, -1) {
			if _, err := fs.Stat(dashboards.Files(), "runbooks/"+other+".md"); err != nil {
				t.Errorf("%s sends on to %s, which does not exist", name, other)
			}
		}
	}
}

// TestCommandProblem shows that a runbook with a wrong command would be noticed.
func TestCommandProblem(t *testing.T) {
	t.Parallel()
	f := func(line string, ok bool) {
		t.Helper()
		if got := commandProblem(line); (got == "") != ok {
			t.Errorf("%s: %q", line, got)
		}
	}
	f("notifyctl doctor", true)
	f("notifyctl dlq ls --code killed_worker", true)
	f("notifyctl circuit open CIRCUIT", true)
	f("notifyctl surgeon", false)
	f("notifyctl dlq empty", false)
	f("notifyctl dlq ls --codes x", false)
	f("notifyctl circuit open", false)
	f("notifyctl doctor now", false)
}

// commandProblem says why a command line could not be run; empty: it could.
func commandProblem(line string) string {
	args := strings.Fields(strings.ReplaceAll(line, "'", ""))[1:]
	c, rest, err := newRoot(&program{}).Find(args)
	if err != nil {
		return err.Error()
	}
	if !c.Runnable() || c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return "there is no such command"
	}
	if err := c.ParseFlags(rest); err != nil {
		return err.Error()
	}
	if c.Args == nil {
		c.Args = cobra.ArbitraryArgs
	}
	if err := c.ValidateArgs(c.Flags().Args()); err != nil {
		return err.Error()
	}
	return ""
}
