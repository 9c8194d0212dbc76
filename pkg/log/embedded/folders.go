package embedded

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/notifyd/notifyd/internal/atomicfile"
)

// makeFolders creates the folders of all partitions. Otherwise the broker would create each folder at
// the first record of the partition, and would not sync it.
func makeFolders(b *Broker) error {
	folders := []string{filepath.Join(b.cfg.Dir, "partitions")}
	for topic, n := range b.cfg.Topics {
		for p := range n {
			folders = append(folders, filepath.Join(folders[0], fmt.Sprintf("%s-%d", url.PathEscape(topic), p)))
		}
	}
	for _, dir := range folders {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("embedded log: %w", err)
		}
	}
	return nil
}

// syncFolders makes the names of the log's files durable. The broker syncs files, but it never syncs
// folders.
func syncFolders(b *Broker) error {
	parts := filepath.Join(b.cfg.Dir, "partitions")
	list, err := os.ReadDir(parts)
	if err != nil {
		return fmt.Errorf("embedded log: %w", err)
	}
	folders := []string{filepath.Dir(b.cfg.Dir), b.cfg.Dir, parts}
	for _, d := range list {
		if d.IsDir() {
			folders = append(folders, filepath.Join(parts, d.Name()))
		}
	}
	for _, dir := range folders {
		if err := atomicfile.SyncDir(dir); err != nil {
			return fmt.Errorf("embedded log: syncing %s: %w", dir, err)
		}
	}
	return nil
}
