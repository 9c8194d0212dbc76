package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/backup"
	"github.com/notifyd/notifyd/pkg/term"
)

func newRestore(p *program) *cobra.Command {
	var data string
	var check bool
	c := &cobra.Command{
		Use: "restore FILE", Short: "Unpack a backup into a new data folder (engines: embedded)", Args: cobra.ExactArgs(1),
		Long: `restore checks that every file is as "notifyctl backup" saved it, and unpacks them
into a new data folder. The folder must be empty or not exist.

A backup does not hold what the server did after the backup was made. A notification
that was under way at that time is delivered again. A notification that was cancelled
later is not cancelled. Never run a restored folder beside the server it came from:
both would deliver.

The callers' signing secrets in a backup are sealed, and the key is not in the backup.
Before the first start, put the key file of the server it came from in place
(secrets.key_file, or DIR.secrets-key beside its data folder DIR).`,
		Example: `  notifyd restore nightly.backup --check
  notifyd restore nightly.backup --data-dir /srv/notifyd
  notifyd serve --data-dir /srv/notifyd

  # a backup of "notifyd dev", which keeps its data in the subfolder data
  notifyd restore dev.backup --data-dir restored/data
  notifyd dev --data-dir restored`,
		RunE: func(c *cobra.Command, args []string) error {
			if (data == "") != check {
				return term.Usage("restore needs --data-dir DIR, or --check to only check the file")
			}
			f, err := os.Open(args[0])
			if err != nil {
				return term.Usage("%v", err)
			}
			defer f.Close()
			if check {
				m, err := backup.Verify(c.Context(), f)
				if err != nil {
					return err
				}
				fmt.Fprintf(p.out, "%s is whole: %d files, %s bytes, store %s, made %s by notifyd %s\n",
					args[0], len(m.Files), term.Count(m.Bytes), term.Clean(m.StoreID), m.Created.Format(time.RFC3339), term.Clean(m.Version))
				return nil
			}
			m, err := backup.Restore(c.Context(), f, data)
			if err != nil {
				return err
			}
			fmt.Fprintf(p.out, "restored %d files, %s bytes, store %s, as of %s, to %s\n",
				len(m.Files), term.Count(m.Bytes), term.Clean(m.StoreID), m.Created.Format(time.RFC3339), data)
			if advice := app.KeyAdvice(data, m.Key); advice != "" {
				fmt.Fprintln(p.out, term.Clean(advice))
			}
			return nil
		},
	}
	c.Flags().StringVar(&data, "data-dir", "", "the new data folder")
	c.Flags().BoolVar(&check, "check", false, "only check that FILE is whole")
	return c
}

func newRestoreServers(p *program) *cobra.Command {
	var cf configFlags
	var taken string
	var acceptLoss bool
	var wait time.Duration
	c := &cobra.Command{
		Use: "restore-servers --taken TIME", Short: "Prepare restored servers for the first start (engines: distributed)", Args: cobra.NoArgs,
		Long: `restore-servers makes processes with engines: distributed repeat the work that a
snapshot of Cassandra does not contain. Run it after Cassandra was restored and
before any process starts. TIME (RFC 3339) is the time at which the snapshot of the
first node began. Every consumer group of Kafka is set back to the newest checkpoint
in Cassandra that is older than TIME. All idempotency keys are removed from Redis, so
a repeated request is then a new request.

Notifications for immediate delivery that were accepted after the snapshot are in
Kafka and are delivered again. Schedules, cancels, moves and replays from after the
snapshot are lost.

restore-servers changes nothing and exits with 6 if a process of notifyd still runs,
or if Kafka lacks records that would be read again.`,
		Example: `  notifyd restore-servers --taken 2026-11-24T03:00:00Z --config my.yaml`,
		RunE: func(c *cobra.Command, _ []string) error {
			at, err := time.Parse(time.RFC3339, taken)
			if err != nil {
				return term.Usage("--taken %q is not a time; give the time when the snapshot of Cassandra began, such as 2026-11-24T03:00:00Z", taken)
			}
			l, err := cf.load(p, nil)
			if err != nil {
				return err
			}
			ctx, stop := context.WithTimeout(c.Context(), wait)
			defer stop()
			r, err := app.RestoreCluster(ctx, &l.Config, at, acceptLoss, newLogger(io.Discard, &l.Config))
			if err != nil {
				return err
			}
			printRestored(p.out, &r)
			return nil
		},
	}
	cf.add(c)
	c.Flags().StringVar(&taken, "taken", "", "when the snapshot of Cassandra began")
	c.Flags().BoolVar(&acceptLoss, "accept-loss", false, "go on although Kafka lacks records; such a partition is read from the first record that Kafka has")
	c.Flags().DurationVar(&wait, "timeout", 3*time.Minute, "how long the command may take")
	return c
}

func printRestored(w io.Writer, r *app.Restored) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "checkpoint\t%s\n", r.Checkpoint.Format(time.RFC3339))
	for _, g := range r.Groups {
		fmt.Fprintf(t, "%s\treads %s records\n", g.Group, term.Count(g.Again))
	}
	fmt.Fprintf(t, "idempotency keys\t%s removed\n", term.Count(int64(r.Keys)))
	for _, m := range r.Missing {
		fmt.Fprintf(t, "lost\t%s\n", m)
	}
	fmt.Fprintf(t, "next\tstart every process, then notifyctl audit\n")
	_ = t.Flush()
}
