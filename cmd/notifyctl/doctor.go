package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// levels contains the levels of findings, from the least serious to the most serious.
var levels = []string{"ok", "warn", "fail"}

func newDoctor(p *program) *cobra.Command {
	var failOn string
	c := &cobra.Command{
		Use: "doctor", Short: "Check the health of the server, and what to repair (scope operate)", Args: cobra.NoArgs,
		Long: `doctor checks this machine (version, clock) and makes the server check itself. Each
finding that is not ok says what to do. Exit codes:

  0  no finding of the level of --fail-on or above
  2  no server is chosen, or the contexts cannot be read
  4  no token, or one without the scope operate
  7  the server does not answer
  9  a finding of level fail; with --fail-on warn, also one of level warn`,
		RunE: func(c *cobra.Command, _ []string) error { return runDoctor(c.Context(), p, failOn) },
	}
	c.Flags().StringVar(&failOn, "fail-on", "fail", "lowest level of a finding that makes the exit code 9: warn or fail")
	completeFlag(c, "fail-on", levels[1:])
	return c
}

func runDoctor(ctx context.Context, p *program, failOn string) error {
	if !slices.Contains(levels[1:], failOn) {
		return term.Usage("--fail-on %q must be warn or fail", failOn)
	}
	t, err := p.target()
	if err != nil {
		return withDoctorAdvice(p, err, &t)
	}
	theirs, err := p.clientOf(&t).Doctor(ctx)
	if err != nil {
		return withDoctorAdvice(p, err, &t)
	}
	fs := append(localFindings(ctx, p), theirs...)
	// Problems come first, because usually only one of thirty checks matters.
	slices.SortStableFunc(fs, func(a, b api.Finding) int { return slices.Index(levels, b.Level) - slices.Index(levels, a.Level) })
	bad := 0
	cols := columns[api.Finding]{head: "CHECK  LEVEL  DETAIL  REPAIR", row: func(f *api.Finding) []string {
		if slices.Index(levels, f.Level) >= slices.Index(levels, failOn) {
			bad++
		}
		return []string{f.Check, f.Level, f.Detail, f.Repair}
	}}
	cols.addProcess(fs, func(f *api.Finding) string { return f.Process })
	if err := p.printer().Print(fs, cols.table(fs)); err != nil {
		return err
	}
	if bad > 0 {
		return term.Exitf(term.ExitFindings, "%d of %d checks found a problem", bad, len(fs))
	}
	return nil
}

// clockTolerance is how much the clocks of this machine and of the server may differ. The server
// reports its time to the second.
const clockTolerance = 5 * time.Second

// localFindings checks what the server cannot check: the client's version and clock.
func localFindings(ctx context.Context, p *program) []api.Finding {
	s := askServerBuild(ctx, p)
	if s == nil {
		return nil
	}
	v := api.Finding{Check: "version", Level: "ok", Detail: "notifyctl " + version + ", notifyd " + cmp.Or(s.Version, "of unknown version")}
	if s.Skew {
		v.Level, v.Repair = "warn", "install the notifyctl that came with notifyd "+s.Version
	}
	fs := []api.Finding{v}
	if s.date.IsZero() {
		return fs
	}
	off := p.now().Sub(s.date)
	c := api.Finding{Check: "clock", Level: "ok", Detail: "within " + clockTolerance.String() + " of the server's"}
	if off > clockTolerance+time.Second || off < -clockTolerance {
		way := "ahead of"
		if off < 0 {
			way = "behind"
		}
		c.Level, c.Detail = "warn", fmt.Sprintf("this machine's clock is %s %s the server's", span(off.Abs()), way)
		c.Repair = "synchronise both clocks (NTP): tokens, --at and expiry depend on them"
	}
	return append(fs, c)
}

// withDoctorAdvice adds the next steps to an error that ends "notifyctl doctor".
func withDoctorAdvice(p *program, err error, t *target) error {
	e, ok := errors.AsType[*notify.Error](err)
	if !ok {
		return err
	}
	var next []string
	switch {
	case e.Code == "bad_config":
		next = []string{"correct the named file, or remove it and add the contexts again: notifyctl context add"}
	case e.Code == "scope_missing":
		next = []string{"use a token with scope operate: notifyd token --key FILE --caller NAME --scope operate"}
	case e.Kind == notify.KindUnauthorized:
		next = []string{
			"notifyctl context show      (which token is used)",
			"notifyd token --key FILE --caller NAME --scope operate > TOKEN",
			"notifyctl context add NAME --server " + t.server + " --token-file TOKEN",
		}
	case e.Kind == notify.KindUnavailable:
		next = []string{
			"start the server: notifyd serve, or notifyd dev",
			"notifyd healthcheck --server " + t.server + "      (on the server's machine)",
			"notifyctl context ls      (is it the right server?)",
		}
	default:
		return err
	}
	return &term.Error{Exit: term.ExitCode(err), Err: err, Next: next}
}

func badAnswer(err error) error {
	return &notify.Error{Kind: notify.KindInternal, Code: "bad_answer", Msg: "the server's answer is not the JSON expected", Err: err}
}
