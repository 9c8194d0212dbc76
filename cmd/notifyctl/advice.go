package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// danger says how much a command asks for.
type danger uint8

const (
	changes danger = iota // asks in a protected context
	undone                // cannot be undone for many: always asks
)

// confirm asks before what is done. Where nobody can be asked, it is an error
// that names the flag.
func (p *program) confirm(t *target, d danger, what string) error {
	if p.global.yes || (d == changes && !t.ctx.Protected) {
		return nil
	}
	where := t.server
	if t.name != "" {
		where = fmt.Sprintf("context %q, %s", t.name, t.server)
	}
	if t.ctx.Protected {
		where += ", protected"
	}
	if !p.inTerminal || p.global.noInput {
		return &term.Error{
			Exit: term.ExitUsage, Err: fmt.Errorf("%s (%s) needs --yes", term.Clean(what), where), Next: []string{"the same command with --yes"},
		}
	}
	fmt.Fprintf(p.err, "%s (%s)? [y/N] ", term.Clean(what), where)
	line, _ := bufio.NewReader(p.in).ReadString('\n') // an end of input is a no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return term.Exitf(term.ExitError, "not confirmed; nothing was done")
}

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
	case "load_grant_missing", "load_grant_expired", "load_grant_host", "load_grant_malformed", "load_grant_unknown", "load_target":
		return []string{"notifyctl load grant --help    (an operator of the server makes one)"}
	case "load_grant_pending", "load_grant_revoked":
		return []string{"notifyctl load grants          (who did what)"}
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
	if u, err := url.Parse(t.server); err == nil && notify.LoopbackHost(u.Host) {
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
	next := "context " + term.Quote(t.name) + " names a token file that is not there"
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
	return &term.Error{Exit: exitOf(ctx, err), Err: err, Next: []string{"the same command with --idempotency-key " + term.Quote(key) + " does not " + what + " twice"}}
}

// human reports whether results are printed for people to read.
func (p *program) human() bool { return p.global.output == "table" && p.global.jq == "" }

// paged runs write. On a terminal what it prints goes through $PAGER, or less. Where
// there is no pager it is printed as it is.
func (p *program) paged(ctx context.Context, write func() error) error {
	if !p.outTerminal || !p.human() {
		return write()
	}
	pager := cmp.Or(p.getenv("PAGER"), "less")
	run := exec.CommandContext(ctx, "sh", "-c", pager)
	run.Env = append(run.Environ(), "LESS="+cmp.Or(p.getenv("LESS"), "FRX")) // ends by itself if one screen is enough
	out := p.out
	run.Stdout, run.Stderr = out, p.err
	if _, err := exec.LookPath("less"); err != nil && pager == "less" {
		return write()
	}
	in, err := run.StdinPipe()
	if err != nil || run.Start() != nil {
		return write()
	}
	p.out = in
	err = write()
	p.out = out
	_ = in.Close() // the pager may have ended
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		err = nil // its reader has seen enough
	}
	end := run.Wait()
	if e, ok := errors.AsType[*exec.ExitError](end); ok && e.ExitCode() == 127 { // there is no such pager
		return write()
	}
	return errors.Join(err, end)
}

// progress is a bar on standard error, where that is a terminal; elsewhere it
// is nil, and says nothing.
type progress struct {
	all *mpb.Progress
	bar *mpb.Bar
}

// progress begins a bar for so many things; 0: it is not known how many.
func (p *program) progress(what string, total int64) *progress {
	if !p.errTerminal || p.global.quiet || p.getenv("TERM") == "dumb" {
		return nil
	}
	all, began := mpb.New(mpb.WithOutput(p.err), mpb.WithWidth(48)), p.now()
	// The carriage return is for the echo of a ^C: it leaves the cursor behind column
	// 0, from where mpb draws the next frame ("chchecking").
	name := mpb.PrependDecorators(decor.Name(fmt.Sprintf("\r%-10s ", what)))
	tail := mpb.AppendDecorators(decor.Any(func(st decor.Statistics) string {
		return howFar(st.Current, total, p.now().Sub(began))
	}))
	if total == 0 {
		return &progress{all, all.AddSpinner(0, name, tail)}
	}
	return &progress{all, all.AddBar(total, name, tail)}
}

// howFar says how much of total is done, how fast, and how long the rest takes at
// that; a total of 0 is not known. Before the first is done nobody knows either.
func howFar(done, total int64, took time.Duration) string {
	s := count(done)
	if total > 0 {
		s += " of " + count(total)
	}
	if done == 0 || took <= 0 {
		return s
	}
	rate := float64(done) / took.Seconds()
	s += fmt.Sprintf("  %s/s", count(int64(rate)))
	if left := total - done; left > 0 {
		s += "  " + span(time.Duration(float64(left)/rate*float64(time.Second))) + " left"
	}
	return s
}

func (g *progress) add(n int) {
	if g != nil {
		g.bar.IncrBy(n)
	}
}

func (g *progress) set(n int64) {
	if g != nil {
		g.bar.SetCurrent(n)
	}
}

// end leaves the bar as it is and goes on below it.
func (g *progress) end() {
	if g == nil {
		return
	}
	if !g.bar.Completed() {
		g.bar.Abort(false)
	}
	g.all.Wait()
}
