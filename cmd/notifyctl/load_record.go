package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/archive/s3"
	"github.com/notifyd/notifyd/pkg/load/record"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/capacity"
)

type recordOptions struct {
	since, until string
	from         string
	kafka        []string
	due          time.Duration
	batch        int
	out          string
}

func newLoadRecord(p *program) *cobra.Command {
	var o recordOptions
	c := &cobra.Command{
		Use: "record", Short: "Make a scenario of what a server has done", Args: cobra.NoArgs,
		Long: `record reads what was accepted from --since to --until and writes a scenario that sends
the same again: a step for each kind (single, batch, fan-out, trigger), channel and
category, with a trace beside the scenario that says when requests came, within 100 ms,
and how large they were. A step says how long texts are, and how unevenly users are
picked. It has no contents, addresses, names or ids.

It reads one of three sources:

  the history of the server: messages and triggers, without the lengths of texts
  --from DIR or s3://BUCKET/PREFIX: files of the archive, without lengths and triggers
  --kafka HOST:PORT or unix:FILE: the log, without triggers

A bucket is reached with the AWS credentials of the environment; a store that is not
AWS's is s3://BUCKET/PREFIX?region=REGION&endpoint=URL&path_style=true. The log has a
message for later from when it was due.`,
		Example: `  notifyctl load record --since 'yesterday 09:00' --until 'yesterday 10:00' --out yesterday.yaml
  notifyctl load record --since 2h --until -1h --kafka unix:/var/lib/notifyd/kafka.sock --out hour.yaml
  notifyctl load record --since 2026-11-26T09:00:00Z --until 2026-11-26T10:00:00Z --from /srv/archive --out hour.yaml
  notifyctl load run hour.yaml`,
		RunE: func(c *cobra.Command, _ []string) error { return runLoadRecord(c.Context(), p, &o) },
	}
	f := c.Flags()
	f.StringVar(&o.since, "since", "", "accepted at or after: a time, a distance such as 2h, or 'yesterday 09:00'")
	f.StringVar(&o.until, "until", "", "accepted before, at most 24h later; default: now")
	f.StringVar(&o.from, "from", "", "folder of an archive, or s3://BUCKET/PREFIX")
	f.StringSliceVar(&o.kafka, "kafka", nil, "brokers of the log: HOST:PORT, or unix:FILE, kafka.sock in the data folder of notifyd")
	f.DurationVar(&o.due, "due-within", time.Hour, "with --kafka: how long after --until to read on, for messages for later that became due by then")
	f.IntVar(&o.batch, "batch-from", 50, "so many messages of a caller, channel and category in one millisecond were a batch, where they have no trace that says so")
	f.StringVar(&o.out, "out", "", "the scenario's file; traces are written beside it")
	return c
}

func runLoadRecord(ctx context.Context, p *program, o *recordOptions) error {
	if o.since == "" || o.out == "" {
		return term.Usage("--since and --out say what is recorded, and where to")
	}
	if o.from != "" && len(o.kafka) > 0 {
		return term.Usage("--from and --kafka: one source at a time")
	}
	since, until, err := p.window(o.since, o.until)
	if err != nil {
		return err
	}
	if until.IsZero() {
		until = p.now()
	}
	r, err := record.New(since, until, o.batch)
	if err != nil {
		return err
	}
	source, err := o.read(ctx, p, r)
	if err != nil {
		return err
	}
	steps, err := r.Write(o.out, source)
	if err != nil {
		return err
	}
	return printList(p, api.List[record.Recorded]{Items: steps}, steps, &columns[record.Recorded]{
		head: "STEP  REQUESTS  MESSAGES  PEAK  USERS  SKEW  TOP 1%  TEXT",
		row: func(s *record.Recorded) []string {
			users, skew, top, text := "-", "-", "-", "-"
			if s.Skew.Users > 0 {
				users, skew, top = count(s.Skew.Users), "even", percent(s.Skew.Top1Pct)
			}
			if s.Skew.Exponent > 0 {
				skew = fmt.Sprintf("%.2f", s.Skew.Exponent)
			}
			if s.Bytes > 0 {
				text = fmt.Sprintf("%.0f bytes", s.Bytes)
			}
			return []string{s.Step, count(s.Requests), count(s.Messages), capacity.Number(float64(s.Peak)) + "/s", users, skew, top, text}
		},
	})
}

// read fills r from the source that the flags name, and says what kind that is.
func (o *recordOptions) read(ctx context.Context, p *program, r *record.Recorder) (source string, err error) {
	switch {
	case len(o.kafka) > 0:
		short, err := r.Log(ctx, o.kafka, o.due)
		if short {
			p.note("the log begins within the period: what was accepted before is missing")
		}
		return "the log", err
	case o.from == "":
		cl, err := p.client()
		if err != nil {
			return "", err
		}
		return "the server's history", r.Server(ctx, cl)
	}
	files := os.DirFS(o.from)
	if rest, ok := strings.CutPrefix(o.from, "s3://"); ok {
		dir, err := os.MkdirTemp("", "notifyctl-archive-")
		if err != nil {
			return "", err
		}
		defer os.RemoveAll(dir) // a copy
		if err := fetchArchive(ctx, rest, r.Since(), dir); err != nil {
			return "", err
		}
		files = os.DirFS(dir)
	} else if _, err := os.Stat(o.from); err != nil {
		return "", &notify.Error{Kind: notify.KindNotFound, Code: "nothing_recorded", Field: "from", Msg: "is no folder that can be read", Err: err}
	}
	err = r.Archive(ctx, files)
	if err == nil && r.Latest().Before(r.Until()) {
		p.note("the archive ends at %s: what was accepted later is not in it yet", p.when(r.Latest()))
	}
	return "the archive", err
}

// fetchArchive copies the files of an archive in a bucket that were written since a day.
func fetchArchive(ctx context.Context, name string, since time.Time, dir string) error {
	u, err := url.Parse("s3://" + name)
	if err != nil || u.Host == "" {
		return term.Usage("--from s3://%s: it is s3://BUCKET/PREFIX", name)
	}
	q := u.Query()
	b, err := s3.New(ctx, s3.Config{
		Bucket: u.Host, Prefix: strings.Trim(u.Path, "/"), Region: q.Get("region"), Endpoint: q.Get("endpoint"), PathStyle: q.Get("path_style") == "true",
	})
	if err != nil {
		return err
	}
	return b.Copy(ctx, "outcomes/", "outcomes/"+since.UTC().Format(time.DateOnly), dir)
}
