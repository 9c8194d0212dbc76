package backup

import (
	"errors"
	"io"
	"os"
)

// Copy copies a file into a folder that is to be written. It is not synced: the
// copy is read soon and removed, and a backup that a crash cut off is none.
func Copy(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// LinkOrCopy is Copy for a file that never changes: a link where the file system
// can.
func LinkOrCopy(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	return Copy(from, to)
}
