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
		Use: "record", Short: "Record a server's traffic as a scenario", Args: cobra.NoArgs,
		Long: `record reads what was accepted from --since to --until and writes a scenario that sends
the same load again. It has a step for each kind (single, batch, fan-out, trigger),
channel and category. A trace file beside the scenario says when requests came, within
100 ms, and how large they were. A step also says how long the texts are, and how
unevenly the users are chosen. The scenario holds no contents, addresses, names or ids.

The traffic is read from one of three sources:

  the history of the server (default): messages and triggers, but no lengths of texts
  --from DIR or s3://BUCKET/PREFIX: files of the archive, no lengths and no triggers
  --kafka HOST:PORT or unix:FILE: the log, no triggers

A bucket is read with the AWS credentials of the environment. For another store than
AWS, write s3://BUCKET/PREFIX?region=REGION&endpoint=URL&path_style=true. The log holds
a scheduled message only from the time it became due.`,
		Example: `  notifyctl load record --since 'yesterday 09:00' --until 'yesterday 10:00' --out yesterday.yaml
  notifyctl load record --since 2h --until -1h --kafka unix:/var/lib/notifyd/kafka.sock --out hour.yaml
  notifyctl load record --since 2026-11-26T09:00:00Z --until 2026-11-26T10:00:00Z --from /srv/archive --out hour.yaml
  notifyctl load run hour.yaml`,
		RunE: func(c *cobra.Command, _ []string) error { return runLoadRecord(c.Context(), p, &o) },
	}
	f := c.Flags()
	f.StringVar(&o.since, "since", "", "accepted at or after this time: RFC 3339, 2h (ago), 'yesterday 09:00'")
	f.StringVar(&o.until, "until", "", "accepted before this time, at most 24h after --since; default: now")
	f.StringVar(&o.from, "from", "", "folder of an archive, or s3://BUCKET/PREFIX")
	f.StringSliceVar(&o.kafka, "kafka", nil, "brokers of the log: HOST:PORT, or unix:FILE (kafka.sock in the data folder of notifyd)")
	f.DurationVar(&o.due, "due-within", time.Hour, "with --kafka: read on for this long after --until, for scheduled messages that became due then")
	f.IntVar(&o.batch, "batch-from", 50, "without traces: count this many messages of one caller, channel and category in one millisecond as a batch")
	f.StringVar(&o.out, "out", "", "file of the scenario; traces are written beside it")
	return c
}

func runLoadRecord(ctx context.Context, p *program, o *recordOptions) error {
	if o.since == "" || o.out == "" {
		return term.Usage("give --since (what to record) and --out (the scenario file)")
	}
	if o.from != "" && len(o.kafka) > 0 {
		return term.Usage("--from and --kafka cannot be used together; give one source")
	}
	since, until, err := p.parsePeriod(o.since, o.until)
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

// read fills the recorder from the source that the flags name, and returns the name of that source.
func (o *recordOptions) read(ctx context.Context, p *program, r *record.Recorder) (source string, err error) {
	switch {
	case len(o.kafka) > 0:
		short, err := r.Log(ctx, o.kafka, o.due)
		if short {
			p.note("the log begins after --since: what was accepted earlier is missing")
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
		defer os.RemoveAll(dir) // dir contains only copies
		if err := fetchArchive(ctx, rest, r.Since(), dir); err != nil {
			return "", err
		}
		files = os.DirFS(dir)
	} else if _, err := os.Stat(o.from); err != nil {
		return "", &notify.Error{Kind: notify.KindNotFound, Code: "nothing_recorded", Field: "from", Msg: "is not a readable folder", Err: err}
	}
	err = r.Archive(ctx, files)
	if err == nil && r.Latest().Before(r.Until()) {
		p.note("the archive ends at %s: it does not hold yet what was accepted later", p.timeText(r.Latest()))
	}
	return "the archive", err
}

// fetchArchive copies archive files from a bucket to the folder dir. It skips the files that were
// written before the day of the time since.
func fetchArchive(ctx context.Context, name string, since time.Time, dir string) error {
	u, err := url.Parse("s3://" + name)
	if err != nil || u.Host == "" {
		return term.Usage("--from s3://%s must be s3://BUCKET/PREFIX", name)
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
