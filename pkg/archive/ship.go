package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// shipAll brings the files that are left in the folder into the bucket: of the
// time before there was one, or of a crash. Nothing is pending.
func (a *Archiver) shipAll(ctx context.Context) error {
	if a.cfg.Bucket == nil {
		return nil
	}
	ms, err := List(a.cfg.Dir)
	if err != nil {
		return broken(err)
	}
	for i := range ms {
		if err := a.ship(ctx, &ms[i]); err != nil {
			return err
		}
		if err := a.shipped(&ms[i]); err != nil {
			return err
		}
	}
	return nil
}

// ship brings a file that has its name into the bucket, and then its manifest:
// a manifest in the bucket says that its file is there.
func (a *Archiver) ship(ctx context.Context, m *Manifest) error {
	if a.cfg.Bucket == nil {
		return nil
	}
	if err := a.cfg.Bucket.Put(ctx, m.File, filepath.Join(a.cfg.Dir, filepath.FromSlash(m.File)), m.SHA256); err != nil {
		return broken(err)
	}
	name := filepath.Join(a.cfg.Dir, filepath.FromSlash(m.manifestName()))
	b, err := os.ReadFile(name)
	if err != nil {
		return broken(err)
	}
	sum := sha256.Sum256(b)
	return broken(a.cfg.Bucket.Put(ctx, m.manifestName(), name, hex.EncodeToString(sum[:])))
}

// shipped removes a file from the folder that is in the bucket, or shall never
// be, its manifest last: while that is there, shipAll finds the file.
func (a *Archiver) shipped(m *Manifest) error {
	if a.cfg.Bucket == nil {
		return nil
	}
	for _, name := range []string{m.File, m.manifestName()} {
		if err := os.Remove(filepath.Join(a.cfg.Dir, filepath.FromSlash(name))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return broken(err)
		}
	}
	_ = os.Remove(filepath.Join(a.cfg.Dir, filepath.FromSlash(filepath.Dir(m.File)))) // the day's folder, once it is empty
	return nil
}
