package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/console"
	"github.com/notifyd/notifyd/pkg/term"
)

func newUI(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "ui", Short: "Watch and steer a server on a live page in the terminal (scope observe)", Args: cobra.NoArgs,
		Long: `ui shows what a server does now, its dead letters, operators' jobs, circuits and what
is to come, on pages that stay current; ? lists the keys. Capital letters change the
server: each asks first, in a protected context for the context's name, and shows the
command that does the same. They need scope operate.

Each panel asks the server at most once a second, and a server that is away ever more
seldom. NO_COLOR and --color never leave the colours out; without UTF-8 in LC_ALL,
LC_CTYPE or LANG only ASCII is drawn.

Where there is no terminal the exit code is 2, and the commands that give the same are
named.`,
		RunE: func(c *cobra.Command, _ []string) error { return runUI(c.Context(), p) },
	}
}

// uiCommands give a script what the page gives a person.
var uiCommands = []string{
	"notifyctl rates; notifyctl lag; notifyctl doctor      (overview)",
	"notifyctl dlq top; notifyctl dlq ls; notifyctl dlq replay --dry-run",
	"notifyctl job ls; notifyctl circuit ls; notifyctl schedule forecast; notifyctl schedule ls",
}

func runUI(ctx context.Context, p *program) error {
	t, err := p.target()
	if err != nil {
		return err
	}
	kind := p.getenv("TERM")
	if !p.inTerminal || !p.outTerminal || p.global.noInput || kind == "" || kind == "dumb" {
		return &term.Error{Exit: term.ExitUsage, Err: errors.New("ui needs a terminal that one can type at"), Next: uiCommands}
	}
	cl := p.clientOf(&t)
	cl.Retries = 0 // the page asks again by itself
	cl.Context = t.name
	env := os.Environ()
	if !p.coloured() {
		env = append(env, "NO_COLOR=1")
	}
	return console.Run(ctx, p.in, p.out, env, console.Options{
		Server: cl, URL: t.server, Context: t.name, Protected: t.ctx.Protected, ReadOnly: readOnly(ctx, &t),
		Command: p.commandLine, ASCII: !utf8Locale(p.getenv), Timeout: p.global.timeout, Parse: parseTime,
	})
}

// readOnly says why a token can change nothing; empty where it can, or where only
// the server knows. The claim is not verified: the server does that.
func readOnly(ctx context.Context, t *target) string {
	if t.token == nil {
		return ""
	}
	token, err := t.token(ctx)
	if err != nil {
		return "" // each request will say so
	}
	if c, ok := readClaims(token); !ok || slices.Contains(strings.Fields(c.Scope), api.ScopeOperate) {
		return ""
	}
	return "the token lacks the scope " + api.ScopeOperate
}

// utf8Locale reports whether the terminal shows more than ASCII, as POSIX says
// it: by the first of these variables that is set.
func utf8Locale(getenv func(string) string) bool {
	locale := strings.ToLower(cmp.Or(getenv("LC_ALL"), getenv("LC_CTYPE"), getenv("LANG")))
	return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}
