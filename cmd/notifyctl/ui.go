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
		Use: "ui", Short: "Watch and control a server on a live page in the terminal (scope observe)", Args: cobra.NoArgs,
		Long: `ui shows the rates of a server, its dead letters, operators' jobs, circuits and
schedules on pages that update themselves; ? lists the keys. Capital letters change the
server. Each asks for confirmation, in a protected context for the context's name, and
shows the command that does the same. Changes need the scope operate.

Each panel queries the server at most once a second, and less and less often while the
server is unreachable. NO_COLOR and --color never turn colours off. Without UTF-8 in
LC_ALL, LC_CTYPE or LANG, only ASCII is drawn.

Without a terminal, ui exits 2 and names the commands that show the same.`,
		RunE: func(c *cobra.Command, _ []string) error { return runUI(c.Context(), p) },
	}
}

// uiCommands are the commands with which a script gets the data that the page shows.
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
		return &term.Error{Exit: term.ExitUsage, Err: errors.New("ui needs a terminal for input and output"), Next: uiCommands}
	}
	cl := p.clientOf(&t)
	cl.Retries = 0 // no retries, because the page itself repeats its requests
	cl.Context = t.name
	env := os.Environ()
	if !p.coloured() {
		env = append(env, "NO_COLOR=1")
	}
	return console.Run(ctx, p.in, p.out, env, console.Options{
		Server: cl, URL: t.server, Context: t.name, Protected: t.ctx.Protected, ReadOnly: readOnlyReason(ctx, &t),
		Command: p.commandLine, ASCII: !utf8Locale(p.getenv), Timeout: p.global.timeout, Parse: parseTime,
	})
}

// readOnlyReason returns "" if the token of t may make changes, or if this is unknown here.
// Otherwise it returns why the token may not make changes. It only reads the scope in the token.
// The server verifies the token later.
func readOnlyReason(ctx context.Context, t *target) string {
	if t.token == nil {
		return ""
	}
	token, err := t.token(ctx)
	if err != nil {
		return "" // every request of the page will report this error
	}
	if c, ok := readClaims(token); !ok || slices.Contains(strings.Fields(c.Scope), api.ScopeOperate) {
		return ""
	}
	return "the token lacks the scope " + api.ScopeOperate
}

// utf8Locale reports whether the terminal can show characters that are not ASCII. It uses the first
// of LC_ALL, LC_CTYPE and LANG that is set, as POSIX says.
func utf8Locale(getenv func(string) string) bool {
	locale := strings.ToLower(cmp.Or(getenv("LC_ALL"), getenv("LC_CTYPE"), getenv("LANG")))
	return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}
