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

// confirmLevel says when a command asks for confirmation.
type confirmLevel uint8

const (
	changes       confirmLevel = iota // asks only in a protected context
	confirmAlways                     // always asks: the command affects many receivers and cannot be undone
)

// confirm asks the person to confirm a change. The parameter description says what will be changed.
// confirm returns nil if the person confirms, or if no confirmation is needed. If no person can
// answer (no terminal, or --no-input), it returns an error that mentions --yes.
func (p *program) confirm(t *target, d confirmLevel, description string) error {
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
			Exit: term.ExitUsage, Err: fmt.Errorf("%s (%s) needs --yes", term.Clean(description), where), Next: []string{"the same command with --yes"},
		}
	}
	fmt.Fprintf(p.err, "%s (%s)? [y/N] ", term.Clean(description), where)
	line, _ := bufio.NewReader(p.in).ReadString('\n') // the end of input counts as no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return term.Exitf(term.ExitError, "not confirmed; nothing was done")
}

// withAdvice adds the next steps to an error. If the command has added its own next steps,
// withAdvice keeps the command's steps, because they are more specific.
func (p *program) withAdvice(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	e, ours := errors.AsType[*term.Error](err)
	if ours && len(e.Next) > 0 {
		return err
	}
	next := p.nextSteps(c, err)
	if len(next) == 0 {
		return err
	}
	if ours {
		return &term.Error{Exit: e.Exit, Err: e.Err, Next: next}
	}
	return &term.Error{Exit: term.ExitCode(err), Err: err, Next: next}
}

func (p *program) nextSteps(c *cobra.Command, err error) []string {
	code := ""
	if e, ok := errors.AsType[*notify.Error](err); ok {
		code = e.Code
	}
	switch code {
	case "no_answer":
		return p.noAnswerAdvice()
	case "no_token":
		return append(p.missingTokenAdvice(), "give a token: --token-file FILE, or use a context that has one (notifyctl context add --help)")
	case "token_signature", "token_key_unknown", "token_expired", "token_malformed":
		return []string{"notifyctl context check       (which server and token are used)", "notifyd token --help          (how to sign a new token)"}
	case "url_not_registered":
		return []string{"notifyctl caller show CALLER  (the callback URLs of the token's caller)", "notifyctl caller set CALLER --callback-url URL   (needs an operator)"}
	case "no_secret":
		return []string{"notifyctl caller rotate-secret CALLER  (needs an operator: makes and prints a secret)"}
	case "secret_sealed":
		return []string{"notifyctl doctor              (needs an operator: names the key file)", "notifyctl caller rotate-secret CALLER  (if the key is lost: makes and prints a new secret)"}
	case "no_filter":
		return []string{"notifyctl dlq top             (groups of dead letters, and a filter to copy)", "the same command with --all   (selects every dead letter)"}
	case "dns":
		return []string{"check the host name; the server resolves it with its own resolver"}
	case "notification_not_found":
		return []string{"notifyctl ls --user USER      (lists what was sent to a user)"}
	case "list_needs_user":
		return []string{"notifyctl ls USER", "notifyctl archive --help      (reads archived outcomes of every user)"}
	case "trigger_not_found":
		return []string{"notifyctl trigger ls"}
	case "job_not_found":
		return []string{"notifyctl job ls"}
	case "dead_letter_not_found":
		return []string{"notifyctl dlq ls"}
	case "load_grant_missing", "load_grant_expired", "load_grant_host", "load_grant_malformed", "load_grant_unknown", "load_target":
		return []string{"notifyctl load grant --help    (an operator of the server creates a load grant)"}
	case "load_grant_pending", "load_grant_revoked":
		return []string{"notifyctl load grants          (who created, approved or revoked each one)"}
	case "caller_not_found":
		return []string{"notifyctl caller ls"}
	case "user_not_found":
		return []string{"notifyctl user set --help     (the first address or preference creates the user)"}
	}
	switch {
	case notify.KindOf(err) == notify.KindForbidden:
		return []string{"notifyctl context check       (the scopes of the token)"}
	case notify.KindOf(err) == notify.KindThrottled || notify.KindOf(err) == notify.KindUnavailable:
		return []string{"run the same command again; notifyctl doctor shows the health of the server"}
	case code == "" && term.ExitCode(err) == term.ExitUsage: // an error with a code already says what is wrong, so it needs no help page
		return []string{c.CommandPath() + " --help"}
	}
	return nil
}

func (p *program) noAnswerAdvice() []string {
	t, err := p.target()
	if err != nil {
		return nil
	}
	what := "is a server running at " + t.server + "?"
	if u, err := url.Parse(t.server); err == nil && notify.LoopbackHost(u.Host) {
		what += " notifyd dev starts one"
	}
	return append([]string{what}, "notifyctl context ls          (lists the known servers), then run the same command again")
}

// missingTokenAdvice returns advice if the context's token file does not exist. Usually the token
// file was removed together with the data of the context's server.
func (p *program) missingTokenAdvice() []string {
	t, err := p.target()
	if err != nil || t.token == nil || t.name == "" || p.tokenGiven() {
		return nil
	}
	if _, err := t.token(context.Background()); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	next := "context " + term.Quote(t.name) + " names a token file that does not exist"
	if strings.HasPrefix(t.name, "dev") {
		next += ": notifyd dev writes it"
	}
	return []string{next}
}

// withRetryHint adds to err a safe way to repeat the command if it is unknown whether the server
// accepted the request. A request that is repeated with the same idempotency key does not do the
// work twice.
func withRetryHint(ctx context.Context, err error, key, what string) error {
	switch notify.KindOf(err) {
	case notify.KindUnavailable, notify.KindThrottled:
	default:
		if ctx.Err() == nil {
			return err
		}
	}
	return &term.Error{Exit: exitOf(ctx, err), Err: err, Next: []string{"the same command with --idempotency-key " + term.Quote(key) + " does not " + what + " twice"}}
}

// printsForPeople reports whether results are printed as tables for people, not for programs.
func (p *program) printsForPeople() bool { return p.global.output == "table" && p.global.jq == "" }

// runPaged calls the function write, which prints the output of the command. If standard output is
// a terminal, the text goes through a pager: the program that $PAGER names, or else "less". If
// there is no such program, the text is printed without a pager.
func (p *program) runPaged(ctx context.Context, write func() error) error {
	if !p.outTerminal || !p.printsForPeople() {
		return write()
	}
	pager := cmp.Or(p.getenv("PAGER"), "less")
	run := exec.CommandContext(ctx, "sh", "-c", pager)
	run.Env = append(run.Environ(), "LESS="+cmp.Or(p.getenv("LESS"), "FRX")) // less ends by itself if the text fits on one screen
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
		err = nil // the person closed the pager early
	}
	end := run.Wait()
	if e, ok := errors.AsType[*exec.ExitError](end); ok && e.ExitCode() == 127 { // the shell did not find the pager
		return write()
	}
	return errors.Join(err, end)
}

// progress is a progress bar on standard error. It is nil if standard error is not a terminal. The
// methods of a nil *progress do nothing.
type progress struct {
	all *mpb.Progress
	bar *mpb.Bar
}

// startProgress shows a progress bar. The parameter total is the number of items, or 0 if the
// number is not known.
func (p *program) startProgress(what string, total int64) *progress {
	if !p.errTerminal || p.global.quiet || p.getenv("TERM") == "dumb" {
		return nil
	}
	all, began := mpb.New(mpb.WithOutput(p.err), mpb.WithWidth(48)), p.now()
	// After Ctrl-C the terminal shows ^C, and the cursor stands behind it. The carriage return
	// moves the cursor to the start of the line, because mpb draws the next frame at the cursor.
	name := mpb.PrependDecorators(decor.Name(fmt.Sprintf("\r%-10s ", what)))
	tail := mpb.AppendDecorators(decor.Any(func(st decor.Statistics) string {
		return progressText(st.Current, total, p.now().Sub(began))
	}))
	if total == 0 {
		return &progress{all, all.AddSpinner(0, name, tail)}
	}
	return &progress{all, all.AddBar(total, name, tail)}
}

// progressText returns how many items are done, how many there are in total, the rate, and the time
// that remains at this rate. If total is 0, the number of items is not known, so the text contains
// no total and no remaining time. Before the first item is done, it returns only the counts.
func progressText(done, total int64, took time.Duration) string {
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

// end stops drawing the bar. The bar stays visible, and later output is below it.
func (g *progress) end() {
	if g == nil {
		return
	}
	if !g.bar.Completed() {
		g.bar.Abort(false)
	}
	g.all.Wait()
}
