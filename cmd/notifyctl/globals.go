package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/term"
)

// globals contains the flags that every command has. A flag has priority over its environment
// variable, and an environment variable has priority over the context.
type globals struct {
	context    string
	server     string
	tokenFile  string
	output     string
	jq         string
	noHeaders  bool
	quiet      bool
	color      string
	timeFormat string
	timeout    time.Duration
	noInput    bool
	yes        bool
}

func (g *globals) add(p *program, root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&g.context, "context", "", "context to use (env NOTIFYCTL_CONTEXT; default: the current one)")
	f.StringVar(&g.server, "server", "", "URL of the server (env NOTIFYCTL_SERVER; default: the context's)")
	f.StringVar(&g.tokenFile, "token-file", "", "file with the token (env NOTIFYCTL_TOKEN_FILE, or the token in NOTIFYCTL_TOKEN)")
	f.StringVarP(&g.output, "output", "o", "table", "format: "+strings.Join(term.Formats, ", "))
	f.StringVar(&g.jq, "jq", "", "filter the JSON form with a jq expression")
	f.BoolVar(&g.noHeaders, "no-headers", false, "leave out the headers of tables")
	f.BoolVarP(&g.quiet, "quiet", "q", false, "print no progress and no notes on standard error")
	f.StringVar(&g.color, "color", "auto", "colours: auto, always, never (auto respects NO_COLOR)")
	f.StringVar(&g.timeFormat, "time-format", "relative", "times in tables: "+strings.Join(timeFormats, ", "))
	f.DurationVar(&g.timeout, "timeout", 30*time.Second, "longest wait for one answer, and for --wait in total (env NOTIFYCTL_TIMEOUT)")
	f.BoolVar(&g.noInput, "no-input", false, "never ask; fail instead of asking a question")
	f.BoolVarP(&g.yes, "yes", "y", false, "answer yes to every question")

	completeFlag(root, "output", term.Formats)
	completeFlag(root, "color", colors)
	completeFlag(root, "time-format", timeFormats)
	_ = root.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return p.contextNames(), cobra.ShellCompDirectiveNoFileComp
	})
}

// completeFlag tells the shell the possible values of a flag. The shell shows them when the user
// presses Tab.
func completeFlag(c *cobra.Command, flag string, values []string) {
	// The only possible error is that the flag does not exist, and every test would find it.
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

var colors = []string{"auto", "always", "never"}

// check returns an error for a wrong value of a flag. The parameter timed says whether the flag
// --timeout was given. If it was not, check takes the timeout from env, the value of
// NOTIFYCTL_TIMEOUT.
func (g *globals) check(timed bool, env string) error {
	if err := (&term.Printer{Format: g.output, JQ: g.jq}).Check(); err != nil {
		return err
	}
	if !slices.Contains(colors, g.color) {
		return term.Usage("--color %q must be one of %s", g.color, strings.Join(colors, ", "))
	}
	if !slices.Contains(timeFormats, g.timeFormat) {
		return term.Usage("--time-format %q must be one of %s", g.timeFormat, strings.Join(timeFormats, ", "))
	}
	if env != "" && !timed {
		d, err := time.ParseDuration(env)
		if err != nil || d <= 0 {
			return term.Usage("NOTIFYCTL_TIMEOUT=%q must be a duration above 0, such as 1m", env)
		}
		g.timeout = d
	}
	if g.timeout <= 0 {
		return term.Usage("--timeout %s must be above 0", g.timeout)
	}
	return nil
}

// target is the server with which a command communicates.
type target struct {
	name   string // name of the context; empty: there is no context
	ctx    term.Context
	server string
	token  func(context.Context) (string, error) // nil: there is no token
}

// target returns the chosen server. If a flag or the environment gives a server but no context, the
// current context's token is not used. Otherwise the token would be sent to another server.
func (p *program) target() (t target, err error) {
	cs, err := term.OpenContexts(p.getenv)
	if err != nil {
		return t, err
	}
	server := cmp.Or(p.global.server, p.getenv("NOTIFYCTL_SERVER"))
	t.name = cmp.Or(p.global.context, p.getenv("NOTIFYCTL_CONTEXT"))
	if t.name == "" && server == "" {
		t.name = cs.Current()
	}
	if t.name != "" {
		if t.ctx, err = cs.Get(t.name); err != nil {
			return t, err
		}
	}
	t.server = cmp.Or(server, t.ctx.Server)
	if t.server == "" {
		return t, &term.Error{Exit: term.ExitUsage, Err: fmt.Errorf("no server is chosen"), Next: []string{
			"notifyd dev                      (starts a server and writes a context)",
			"notifyctl context add NAME --server URL --token-file FILE",
		}}
	}
	if u, err := url.Parse(t.server); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return t, term.Usage("server %q is not a URL such as http://127.0.0.1:7420", t.server)
	}
	t.token = p.tokenSource(t.ctx.TokenFile)
	return t, nil
}

// tokenGiven reports whether a flag or the environment gives the token. Otherwise the context gives
// it.
func (p *program) tokenGiven() bool {
	return cmp.Or(p.global.tokenFile, p.getenv("NOTIFYCTL_TOKEN_FILE"), p.getenv("NOTIFYCTL_TOKEN")) != ""
}

// tokenSource returns a function that reads the token. It returns nil if there is no token.
func (p *program) tokenSource(fromContext string) func(context.Context) (string, error) {
	file := cmp.Or(p.global.tokenFile, p.getenv("NOTIFYCTL_TOKEN_FILE"))
	if env := p.getenv("NOTIFYCTL_TOKEN"); file == "" && env != "" {
		return func(context.Context) (string, error) { return env, nil }
	}
	if file = cmp.Or(file, fromContext); file == "" {
		return nil
	}
	// Read the file for each request, because the token may be renewed during a long run.
	return func(context.Context) (string, error) {
		b, err := secrets.ReadFile(file)
		return strings.TrimSpace(string(b)), err
	}
}

// client returns a client for the chosen server. --timeout is the time limit of each request.
func (p *program) client() (*api.Client, error) {
	t, err := p.target()
	if err != nil {
		return nil, err
	}
	return p.clientOf(&t), nil
}

// confirmedClient asks the person to confirm a change, and then returns a client for the change.
func (p *program) confirmedClient(d confirmLevel, what, reason string) (*api.Client, error) {
	t, cl, err := p.operatorClient(reason)
	if err == nil {
		err = p.confirm(t, d, what)
	}
	return cl, err
}

// operatorClient returns the chosen server and a client for it. The client sends the reason with
// each change, and the server stores it in the audit log.
func (p *program) operatorClient(reason string) (*target, *api.Client, error) {
	t, err := p.target()
	if err != nil {
		return nil, nil, err
	}
	cl := p.clientOf(&t)
	cl.Reason, cl.Context = reason, t.name
	return &t, cl, nil
}

// withClient returns a function for cobra.Command.RunE. The returned function makes a client for
// the chosen server and passes it to the function run.
func (p *program) withClient(run func(ctx context.Context, cl *api.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		cl, err := p.client()
		if err != nil {
			return err
		}
		return run(c.Context(), cl, args)
	}
}

func (p *program) clientOf(t *target) *api.Client {
	if u, err := url.Parse(t.server); err == nil && u.Scheme == "http" && t.token != nil && !notify.LoopbackHost(u.Host) {
		p.warnedUnencrypted.Do(func() { p.note("warning: the token is sent to %s without encryption", u.Host) })
	}
	return &api.Client{
		BaseURL: t.server, Token: t.token, Retries: 3, UserAgent: "notifyctl/" + version,
		HTTPClient: &http.Client{Transport: api.NewTransport(16), Timeout: p.global.timeout},
		OnAudit:    p.noteAuditID,
	}
}

// noteAuditID prints the id of the audit log row in which the server has recorded this command's
// change. It also stores the id, so that the printed result contains it.
func (p *program) noteAuditID(id string) {
	p.auditID.Store(&id)
	p.note("audit %s", id)
}

// printer returns a printer of results with the settings of the flags.
func (p *program) printer() *term.Printer {
	out := &term.Printer{Out: p.out, Format: p.global.output, JQ: p.global.jq, NoHeaders: p.global.noHeaders, Width: p.width}
	if id := p.auditID.Load(); id != nil {
		out.AuditID = *id
	}
	if p.coloured() {
		out.Paint = paint
	}
	return out
}

// note prints a line about the work to standard error. The line is not part of the result.
func (p *program) note(format string, args ...any) {
	if !p.global.quiet && !p.drawing.Load() {
		fmt.Fprintln(p.err, term.Clean(fmt.Sprintf(format, args...)))
	}
}

func (p *program) contextNames() []string {
	cs, err := term.OpenContexts(p.getenv)
	if err != nil {
		return nil
	}
	return cs.Names()
}

func (p *program) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return p.contextNames(), cobra.ShellCompDirectiveNoFileComp
}

// runIDs returns the ids of the stored load runs, for completion in the shell.
func (p *program) runIDs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	list, err := runStore(p).List()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, e := range list {
		ids = append(ids, e.ID)
	}
	return ids, cobra.ShellCompDirectiveDefault // a file is also allowed
}

// commandLine returns a notifyctl command line that includes the flags with which this server was
// chosen.
func (p *program) commandLine(words ...string) string {
	line := []string{"notifyctl"}
	for flag, v := range map[string]string{"--context": p.global.context, "--server": p.global.server, "--token-file": p.global.tokenFile} {
		if v != "" {
			line = append(line, flag+"="+term.Quote(v))
		}
	}
	slices.Sort(line[1:])
	for _, w := range words {
		line = append(line, term.Quote(w))
	}
	return strings.Join(line, " ")
}

// withProgram returns f with p as its first argument.
func withProgram[T, R any](p *program, f func(*program, T) R) func(T) R {
	return func(x T) R { return f(p, x) }
}
