package main

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// withAdvice adds to an error what to do next, where the command that failed did
// not: it knows better.
func (p *program) withAdvice(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	e, ours := errors.AsType[*term.Error](err)
	if ours && len(e.Next) > 0 {
		return err
	}
	next := p.next(c, err)
	if len(next) == 0 {
		return err
	}
	if ours {
		return &term.Error{Exit: e.Exit, Err: e.Err, Next: next}
	}
	return &term.Error{Exit: term.ExitCode(err), Err: err, Next: next}
}

func (p *program) next(c *cobra.Command, err error) []string {
	code := ""
	if e, ok := errors.AsType[*notify.Error](err); ok {
		code = e.Code
	}
	switch code {
	case "no_answer":
		return p.noAnswer()
	case "no_token":
		return append(p.dead(), "a token: --token-file FILE, or a context that has one (notifyctl context add --help)")
	case "token_signature", "token_key_unknown", "token_expired", "token_malformed":
		return []string{"notifyctl context check       (which server and token are used)", "notifyd token --help          (signs a new one)"}
	case "url_not_registered":
		return []string{"notifyctl caller show CALLER  (whose token it is: its callback URLs)", "notifyctl caller set CALLER --callback-url URL   (an operator's to do)"}
	case "no_secret":
		return []string{"notifyctl caller rotate-secret CALLER  (an operator's to do: it makes and prints one)"}
	case "secret_sealed":
		return []string{"notifyctl doctor              (an operator's to do: it names the key file)", "notifyctl caller rotate-secret CALLER  (where the key is lost: it makes and prints a new secret)"}
	case "no_filter":
		return []string{"notifyctl dlq top             (what there is, and a filter to paste)", "the same command with --all   (means every dead letter)"}
	case "dns":
		return []string{"check the name; the resolver of the server is asked"}
	case "notification_not_found":
		return []string{"notifyctl ls --user USER      (what a user was sent)"}
	case "list_needs_user":
		return []string{"notifyctl ls USER", "notifyctl archive --help      (what ended, in files)"}
	case "trigger_not_found":
		return []string{"notifyctl trigger ls"}
	case "job_not_found":
		return []string{"notifyctl job ls"}
	case "dead_letter_not_found":
		return []string{"notifyctl dlq ls"}
	case "caller_not_found":
		return []string{"notifyctl caller ls"}
	case "user_not_found":
		return []string{"notifyctl user set --help     (a user begins with the first address or wish that is set)"}
	}
	switch {
	case notify.KindOf(err) == notify.KindForbidden:
		return []string{"notifyctl context check       (the scopes of the token)"}
	case notify.KindOf(err) == notify.KindThrottled || notify.KindOf(err) == notify.KindUnavailable:
		return []string{"the same command again; notifyctl doctor says how the server is"}
	case code == "" && term.ExitCode(err) == term.ExitUsage: // one with a code names its field and the rule
		return []string{c.CommandPath() + " --help"}
	}
	return nil
}

// noAnswer is what to do when nobody listens: for a dev server, to start it.
func (p *program) noAnswer() []string {
	t, err := p.target()
	if err != nil {
		return nil
	}
	what := "is a server running at " + t.server + "?"
	if u, err := url.Parse(t.server); err == nil && loopback(u.Hostname()) {
		what += " notifyd dev starts one"
	}
	return append([]string{what}, "notifyctl context ls          (the servers that are known), then the same command again")
}

// dead says that the server of the context may be gone, when its token is.
func (p *program) dead() []string {
	t, err := p.target()
	if err != nil || t.token == nil || t.name == "" || p.tokenGiven() {
		return nil
	}
	if _, err := t.token(context.Background()); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	next := "context " + quote(t.name) + " names a token file that is not there"
	if strings.HasPrefix(t.name, "dev") {
		next += ": notifyd dev makes one"
	}
	return []string{next}
}

// again adds, to an error after which nobody knows whether a request was taken,
// the way to repeat it that does nothing twice.
func again(ctx context.Context, err error, key, what string) error {
	switch notify.KindOf(err) {
	case notify.KindUnavailable, notify.KindThrottled:
	default:
		if ctx.Err() == nil {
			return err
		}
	}
	return &term.Error{Exit: exitOf(ctx, err), Err: err, Next: []string{"the same command with --idempotency-key " + quote(key) + " does not " + what + " twice"}}
}
