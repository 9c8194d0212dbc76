package app

import (
	"context"
	"path"

	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/archive/s3"
	"github.com/notifyd/notifyd/pkg/metrics"
)

// openBucket opens the bucket of the archive; nil where none is named.
func openBucket(ctx context.Context, c *Config) (archive.Bucket, error) {
	k := &c.Archive.S3
	if k.Bucket == "" {
		return nil, nil
	}
	if err := checkSecret("archive.s3.credentials_file", k.Credentials); err != nil {
		return nil, err
	}
	return s3.New(ctx, *k)
}

// openArchive opens the archive; nil where there is none.
func openArchive(ctx context.Context, n *Node) (*archive.Archiver, error) {
	c := &n.cfg.Archive
	if c.Dir == "" {
		return nil, nil
	}
	bucket, err := openBucket(ctx, &n.cfg)
	if err != nil {
		return nil, err
	}
	return archive.Open(ctx, archive.Config{
		// The feeds would count as seen by their callers what is archived.
		Dir: c.Dir, Letters: n.st.letters, Callers: n.feeds.Callers, History: n.own.history, Status: n.st.status, Meta: n.st.meta,
		Every: c.Every, After: c.After, Wait: c.Wait, Bucket: bucket, Logger: n.log,
		Written: func(kind string, lines int) { metrics.Add(n.metrics.ArchiveLines, lines, kind) },
		Failed:  func(error) { n.metrics.ArchiveFailures.Inc() },
	})
}

// archivePlace is where its files end up.
func archivePlace(c *Config) string {
	if c.Archive.S3.Bucket != "" {
		return "s3://" + path.Join(c.Archive.S3.Bucket, c.Archive.S3.Prefix)
	}
	return c.Archive.Dir
}

// archiveLevel says how bad it is that the archive is behind: from half of the
// wait on, what was not archived will soon be removed.
func archiveLevel(s archive.Status) (bad bool, level string) {
	if s.Age > s.Wait/2 {
		return true, "fail"
	}
	return s.Err != nil, "warn"
}
