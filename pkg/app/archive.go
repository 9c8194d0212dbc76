package app

import (
	"context"
	"path"

	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/archive/s3"
	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/metrics"
	"github.com/notifyd/notifyd/pkg/notify"
)

// openBucket opens the bucket of the archive. It returns nil if no bucket is configured.
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

// openArchive opens the archive. It returns nil if no archive is configured.
func openArchive(ctx context.Context, n *Node) (*archive.Archiver, error) {
	c := &n.cfg.Archive
	if c.Dir == "" {
		return nil, nil
	}
	bucket, err := openBucket(ctx, &n.cfg)
	if err != nil {
		return nil, err
	}
	var past archive.History
	if n.embedded != nil {
		past = ownHistory{n.embedded.history}
	} else {
		past = archive.OverLog{
			Offsets: n.admin, Topics: notify.FirstTopics(), Read: conserve.WorkerLog{Admin: n.admin, Reader: n.reader}.Read,
			Skipped: func(p history.Part, from, to int64) {
				n.log.Error("records were removed from the log before they were archived", "partition", p.String(), "from", from, "to", to)
			},
		}
	}
	a, err := archive.Open(ctx, archive.Config{
		// Letters must not be n.feeds, because a dead letter that is read through n.feeds counts as
		// seen by its caller.
		Dir: c.Dir, Letters: n.st.letters, Callers: n.feeds.Callers, History: past, Shared: n.embedded == nil, Status: n.st.status, Meta: n.st.meta,
		Every: c.Every, After: c.After, Wait: c.Wait, Bucket: bucket, Logger: n.log,
		Written: func(kind string, lines int) { metrics.Add(n.metrics.ArchiveLines, lines, kind) },
		Failed:  func(error) { n.metrics.ArchiveFailures.Inc() },
	})
	n.groups.archive = a
	return a, err
}

// ownHistory is the embedded history with the methods that the archive needs.
type ownHistory struct{ *history.Store }

func (h ownHistory) Settled(_ context.Context, before int64) (map[history.Part]int64, error) {
	return h.Store.Settled(before), nil
}

// archivePlace returns the place where the files of the archive are stored.
func archivePlace(c *Config) string {
	if c.Archive.S3.Bucket != "" {
		return "s3://" + path.Join(c.Archive.S3.Bucket, c.Archive.S3.Prefix)
	}
	return c.Archive.Dir
}

// archiveLevel returns how serious the state of the archive is. If the last complete run of the
// archive is longer ago than half of archive.wait, data may soon be removed before it is archived.
func archiveLevel(s archive.Status) (bad bool, level string) {
	if s.Age > s.Wait/2 {
		return true, "fail"
	}
	return s.Err != nil, "warn"
}
