package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/term"
)

func newContext(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "context", Short: "Choose the server that commands talk to", Aliases: []string{"ctx"},
		Long: `A context is a server with its token and settings. Contexts are kept in
$XDG_CONFIG_HOME/notifyctl/config.yaml. The name of the current one is kept in
$XDG_STATE_HOME/notifyctl, so that a shared configuration can be read-only.`,
	}
	c.AddCommand(newContextList(p), newContextShow(p), newContextAdd(p), newContextUse(p), newContextRemove(p), newContextPrevious(p), newContextCheck(p))
	return c
}

// namedContext is a context with its name, in the form in which commands print it.
type namedContext struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	term.Context
}

// withContexts returns a function for cobra.Command.RunE. The returned function opens the contexts
// and passes them to fn.
func withContexts(p *program, fn func(cs *term.Contexts, args []string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		cs, err := term.OpenContexts(p.getenv)
		if err != nil {
			return err
		}
		return fn(cs, args)
	}
}

func newContextList(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the contexts", Args: cobra.NoArgs, Aliases: []string{"list"},
		Example: `  notifyctl context ls`,
		RunE: withContexts(p, func(cs *term.Contexts, _ []string) error {
			list, t := []namedContext{}, term.Table{{"", "NAME", "SERVER", "PROTECTED"}}
			for _, name := range cs.Names() {
				n := namedContext{name, name == cs.Current(), cs.List[name]}
				list, t = append(list, n), append(t, []string{textIf(n.Current, "*"), n.Name, n.Server, textIf(n.Protected, "yes")})
			}
			if len(list) == 0 {
				p.note(`none; "notifyd dev" writes one, or see: notifyctl context add --help`)
			}
			return p.printer().Print(list, t)
		}),
	}
}

func textIf(on bool, text string) string {
	if on {
		return text
	}
	return ""
}

func newContextShow(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "show [NAME]", Short: "Show a context; without a name, the current one", Args: cobra.MaximumNArgs(1),
		Example: `  notifyctl context show
  notifyctl context show prod -o json`,
		ValidArgsFunction: p.completeContexts,
		RunE: withContexts(p, func(cs *term.Contexts, args []string) error {
			name := cmp.Or(append(args, p.global.context, p.getenv("NOTIFYCTL_CONTEXT"), cs.Current())...)
			if name == "" {
				return term.Exitf(term.ExitNotFound, "no context is chosen; choose one with: notifyctl context use NAME")
			}
			x, err := cs.Get(name)
			if err != nil {
				return err
			}
			n := namedContext{name, name == cs.Current(), x}
			return p.printer().Record(n, term.Table{
				{"name", n.Name}, {"current", textIf(n.Current, "yes")}, {"server", n.Server}, {"token file", n.TokenFile},
				{"simulators", n.Simulators}, {"protected", textIf(n.Protected, "yes")}, {"kept in", cs.File()},
			})
		}),
	}
}

func newContextAdd(p *program) *cobra.Command {
	var x term.Context
	var sims []string
	var use bool
	c := &cobra.Command{
		Use: "add NAME --server URL", Short: "Add or replace a context", Args: term.Exact("a name"),
		Long: `add stores a context. --token-file names the file that holds the token; it is read for
each command. "--token-file -" reads the token from standard input and stores it in a
file that only you can read.`,
		Example: `  notifyctl context add prod --server https://notify.example.com --token-file ~/.secrets/notify --protected
  vault read -field=token notify | notifyctl context add prod --server https://notify.example.com --token-file -`,
		RunE: func(_ *cobra.Command, args []string) error {
			x.Server, x.TokenFile, x.Simulators = p.global.server, p.global.tokenFile, strings.Join(sims, ",")
			if x.Simulators != "" {
				if _, err := load.ParseSimulators(x.Simulators, nil); err != nil {
					return err
				}
			}
			return runContextAdd(p, args[0], x, use)
		},
	}
	c.Flags().StringSliceVar(&sims, "simulators", nil, "control URL of simulated providers; load runs add the ledgers of several")
	c.Flags().BoolVar(&x.Protected, "protected", false, "ask before each change on this server")
	c.Flags().BoolVar(&use, "use", false, "make it the current context")
	return c
}

func runContextAdd(p *program, name string, x term.Context, use bool) error {
	if x.Server == "" {
		return term.Usage("--server is missing; give the URL of the server")
	}
	if name == "" || strings.ContainsAny(name, "/\\ \t\n") || name == "-" {
		return term.Usage("%q cannot be the name of a context; a name must not be empty, must not be -, and must not contain /, \\ or spaces", name)
	}
	cs, err := term.OpenContexts(p.getenv)
	if err != nil {
		return err
	}
	switch {
	case x.TokenFile == "-":
		if x.TokenFile, err = keepToken(p, filepath.Join(filepath.Dir(cs.File()), "tokens"), name); err != nil {
			return err
		}
	case x.TokenFile != "":
		if x.TokenFile, err = filepath.Abs(x.TokenFile); err != nil {
			return err
		}
	}
	if err := cs.Set(name, x); err != nil {
		return err
	}
	if use || cs.Current() == "" {
		if err := cs.Use(name); err != nil {
			return err
		}
		p.note("context %q is stored and in use", name)
		return nil
	}
	p.note("context %q is stored; choose it with: notifyctl context use %s", name, term.Quote(name))
	return nil
}

func keepToken(p *program, dir, name string) (string, error) {
	token, err := readAll(p, "-")
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(token))
	if text == "" {
		return "", term.Usage("there is no token on standard input")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	file := filepath.Join(dir, name)
	return file, os.WriteFile(file, []byte(text+"\n"), 0o600)
}

func newContextUse(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one; - is the previous one", Args: term.Exact("a name"),
		Example: `  notifyctl context use prod
  notifyctl context use -`,
		ValidArgsFunction: p.completeContexts,
		RunE: withContexts(p, func(cs *term.Contexts, args []string) error {
			if args[0] == "-" {
				return usePrevious(p, cs)
			}
			return useContext(p, cs, args[0])
		}),
	}
}

func newContextPrevious(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "previous", Short: "Go back to the previous context", Args: cobra.NoArgs,
		Example: `  notifyctl context previous`,
		RunE:    withContexts(p, func(cs *term.Contexts, _ []string) error { return usePrevious(p, cs) }),
	}
}

func usePrevious(p *program, cs *term.Contexts) error {
	name := cs.Previous()
	if name == "" {
		return term.Exitf(term.ExitNotFound, "there is no previous context")
	}
	return useContext(p, cs, name)
}

func useContext(p *program, cs *term.Contexts, name string) error {
	if err := cs.Use(name); err != nil {
		return err
	}
	p.note("now using context %q: %s", name, cs.List[name].Server)
	return nil
}

func newContextRemove(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Short: "Remove a context", Args: term.Exact("a name"), Aliases: []string{"remove"},
		Example:           `  notifyctl context rm staging`,
		ValidArgsFunction: p.completeContexts,
		RunE: withContexts(p, func(cs *term.Contexts, args []string) error {
			if err := cs.Remove(args[0]); err != nil {
				return err
			}
			kept := filepath.Join(filepath.Dir(cs.File()), "tokens", args[0])
			if err := os.Remove(kept); err != nil && !os.IsNotExist(err) {
				return err
			}
			p.note("context %q is removed", args[0])
			return nil
		}),
	}
}

func newContextCheck(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "check [NAME]", Short: "Test the server and the token of a context", Args: cobra.MaximumNArgs(1),
		Example: `  notifyctl context check
  notifyctl context check prod`,
		ValidArgsFunction: p.completeContexts,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				p.global.context = args[0]
			}
			return runContextCheck(c.Context(), p)
		},
	}
}

// contextCheck is the result of a check of a context.
type contextCheck struct {
	Context string     `json:"context,omitempty"`
	Server  string     `json:"server"`
	Ready   bool       `json:"ready"`
	Took    string     `json:"took"`
	Caller  string     `json:"caller,omitempty"`
	Scopes  string     `json:"scopes,omitempty"`
	Expires *time.Time `json:"expires,omitempty"`
}

func runContextCheck(ctx context.Context, p *program) error {
	t, err := p.target()
	if err != nil {
		return err
	}
	cl := p.clientOf(&t)
	cl.Retries = 0
	out := contextCheck{Context: t.name, Server: t.server}
	began := p.now()
	if err := cl.Ready(ctx); err != nil {
		return err
	}
	out.Ready, out.Took = true, span(p.now().Sub(began))
	if t.token == nil {
		p.note("the context has no token: only the connection was tested")
	} else {
		if _, err := cl.Failed(ctx, 0, 0, 1); err != nil {
			return err
		}
		token, err := t.token(ctx)
		if c, ok := readClaims(token); err == nil && ok {
			out.Caller, out.Scopes = c.Subject, c.Scope
			if c.Expires > 0 {
				at := time.Unix(int64(c.Expires), 0).UTC()
				out.Expires = &at
			}
		}
	}
	return p.printer().Record(out, term.Table{
		{"context", out.Context}, {"server", out.Server}, {"ready", fmt.Sprintf("yes, after %s", out.Took)},
		{"token of", out.Caller}, {"scopes", out.Scopes}, {"expires", p.optionalTimeText(out.Expires)},
	})
}

// claims are the claims of a token. They are not verified here, because the server verifies them.
type claims struct {
	Subject string  `json:"sub"`
	Scope   string  `json:"scope"`
	Expires float64 `json:"exp"`
}

func readClaims(token string) (c claims, ok bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, false
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	return c, err == nil && json.Unmarshal(b, &c) == nil
}
