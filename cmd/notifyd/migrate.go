package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/term"
)

func newMigrate(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "migrate", Short: "Make what this version needs in the servers (engines: distributed)",
		Long: `migrate up makes what processes with engines: distributed need: the topics of Kafka,
the tables of Cassandra and PostgreSQL, the queues of SQS, and the rows that name
the installation. Run it before the first start and before each new release. It also
raises the numbers of partitions and of timer shards to log.partitions and
timers.shards. It is safe to run it again, or twice at the same time.`,
	}
	addDirection := func(to engine.Direction, short string, confirm bool) {
		var cf configFlags
		var wait time.Duration
		var yes bool
		one := &cobra.Command{
			Use: string(to), Short: short, Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				l, err := cf.load(p, nil)
				if err != nil {
					return err
				}
				if l.Config.Engines == app.EnginesEmbedded {
					fmt.Fprintln(p.out, "embedded  nothing to migrate: the store names its format, and notifyd serve opens it or refuses to start")
					return nil
				}
				if confirm && !yes {
					return term.Usage("\"migrate down\" drops every table and its data; to confirm, repeat the command with --yes")
				}
				ctx, stop := context.WithTimeout(c.Context(), wait)
				defer stop()
				ms, err := app.Migrate(ctx, &l.Config, to, newLogger(io.Discard, &l.Config))
				pending := printMigrations(p.out, ms)
				if err != nil {
					return err
				}
				if to == engine.Look && pending > 0 {
					return term.Exitf(term.ExitUnavailable, "%d steps are missing; run notifyd migrate up", pending)
				}
				return nil
			},
		}
		cf.add(one)
		one.Flags().DurationVar(&wait, "timeout", 3*time.Minute, "how long the command may take")
		if confirm {
			one.Flags().BoolVar(&yes, "yes", false, "drop everything")
		}
		c.AddCommand(one)
	}
	addDirection(engine.Look, "Print what exists and what is missing; exit 7 if something is missing", false)
	addDirection(engine.Up, "Make what is missing", false)
	addDirection(engine.Down, "Drop all tables and their data; topics and queues stay", true)
	return c
}

// printMigrations writes one line for each migration and returns the number of missing migrations.
func printMigrations(w io.Writer, ms []app.Migration) (pending int) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, m := range ms {
		state := "there"
		switch {
		case !m.Applied:
			pending++
			state = "missing"
		case m.At.After(time.Now()):
			state = "from " + m.At.UTC().Format(time.RFC3339)
		case !m.At.IsZero():
			state = "since " + m.At.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", m.Engine, m.Step, state)
	}
	_ = t.Flush()
	return pending
}
