package app

import (
	"context"
	"path"
	"time"

	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/archive/s3"
	"github.com/notifyd/notifyd/pkg/history"
)

// buildArchive opens the archive, if there is to be one.
func (n *Node) buildArchive(ctx context.Context) (err error) {
	c := &n.cfg.Archive
	if c.Dir == "" {
		return nil
	}
	var bucket archive.Bucket
	if c.S3.Bucket != "" {
		bucket, err = s3.New(ctx, s3.Config{
			Bucket: c.S3.Bucket, Prefix: c.S3.Prefix, Region: c.S3.Region, Endpoint: c.S3.Endpoint,
			PathStyle: c.S3.PathStyle, Credentials: c.S3.Credentials,
		})
		if err != nil {
			return err
		}
	}
	n.archive, err = archive.Open(ctx, archive.Config{
		// The feeds would count as seen by their callers what is archived.
		Dir: c.Dir, Letters: n.st.letters, Callers: n.feeds.Callers, History: n.own.history, Status: n.st.status, Meta: n.st.meta,
		Every: c.Every, After: c.After, Wait: c.Wait, Bucket: bucket, Logger: n.log,
		Written: func(kind string, lines int) { add(n.metrics.archiveLines, lines, kind) },
		Failed:  func(error) { n.metrics.archiveFailures.Inc() },
	})
	return err
}

// archivePlace is where its files end up.
func archivePlace(c *Config) string {
	if c.Archive.S3.Bucket != "" {
		return "s3://" + path.Join(c.Archive.S3.Bucket, c.Archive.S3.Prefix)
	}
	return c.Archive.Dir
}

// archived is what history asks before it removes what is old. It is asked once
// the process runs.
func (n *Node) archived() map[history.Part]int64 { return n.archive.Positions() }

// purgeLetters forgets dead letters whose time is over, and that are archived
// if they are to be.
func (n *Node) purgeLetters(ctx context.Context, now time.Time) error {
	until := now.UnixMilli()
	if n.archive != nil {
		var err error
		if until, err = n.archive.PurgeBefore(ctx, now); err != nil {
			return err
		}
	}
	_, err := n.st.letters.Purge(ctx, until)
	return err
}

// archiveLevel says how bad it is that the archive is behind: from half of the
// wait on, what was not archived will soon be removed.
func archiveLevel(s archive.Status) (bad bool, level string) {
	if s.Age > s.Wait/2 {
		return true, "fail"
	}
	return s.Err != nil, "warn"
}
