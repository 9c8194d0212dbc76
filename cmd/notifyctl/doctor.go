package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/cli"
	"github.com/notifyd/notifyd/pkg/notify"
)

// finding is one thing the server's doctor looked at.
type finding struct {
	Check  string `json:"check"`
	Level  string `json:"level"` // ok, warn, fail
	Detail string `json:"detail"`
}

// levels of findings, the mildest first.
var levels = []string{"ok", "warn", "fail"}

func newDoctor(p *program) *cobra.Command {
	var failOn string
	c := &cobra.Command{
		Use: "doctor", Short: "Check the server's health from the inside (scope operate)", Args: cobra.NoArgs,
		Long: `doctor asks the server what is wrong with it, and exits 9 when something is: a
finding of level fail, or with --fail-on warn also one of level warn.`,
		RunE: func(c *cobra.Command, _ []string) error { return runDoctor(c.Context(), p, failOn) },
	}
	c.Flags().StringVar(&failOn, "fail-on", "fail", "level from which the exit code is 9: warn or fail")
	complete(c, "fail-on", levels[1:])
	return c
}

func runDoctor(ctx context.Context, p *program, failOn string) error {
	if !slices.Contains(levels[1:], failOn) {
		return cli.Usage("--fail-on %q: it is warn or fail", failOn)
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	raw, err := cl.Doctor(ctx)
	if err != nil {
		return err
	}
	var fs []finding
	if err := json.Unmarshal(raw, &fs); err != nil {
		return badAnswer(err)
	}
	if err := p.printer().Print(fs, func() cli.Table {
		t := cli.Table{{"CHECK", "LEVEL", "DETAIL"}}
		for _, f := range fs {
			t = append(t, []string{f.Check, f.Level, f.Detail})
		}
		return t
	}); err != nil {
		return err
	}
	bad := 0
	for _, f := range fs {
		if slices.Index(levels, f.Level) >= slices.Index(levels, failOn) {
			bad++
		}
	}
	if bad > 0 {
		return cli.Exitf(cli.ExitFindings, "%d of %d checks found something", bad, len(fs))
	}
	return nil
}

// groupLag is how far a consumer group is behind.
type groupLag struct {
	Group    string `json:"group"`
	Topic    string `json:"topic"`
	Lag      int64  `json:"lag"`
	InFlight int    `json:"in_flight"`
	Paused   int    `json:"paused"`
}

func newLag(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "lag", Short: "Show how far each consumer group is behind (scope operate)", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := p.client()
			if err != nil {
				return err
			}
			raw, err := cl.Lag(c.Context())
			if err != nil {
				return err
			}
			var ls []groupLag
			if err := json.Unmarshal(raw, &ls); err != nil {
				return badAnswer(err)
			}
			return p.printer().Print(ls, func() cli.Table {
				t := cli.Table{{"GROUP", "TOPIC", "BEHIND", "IN FLIGHT", "PAUSED"}}
				for _, l := range ls {
					t = append(t, []string{l.Group, l.Topic, count(l.Lag), count(l.InFlight), fmt.Sprint(l.Paused)})
				}
				return t
			})
		},
	}
}

func badAnswer(err error) error {
	return &notify.Error{Kind: notify.KindInternal, Code: "bad_answer", Msg: "the server's answer is not the JSON expected", Err: err}
}
