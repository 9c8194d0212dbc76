package embedded

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/notify"
)

// storeID returns the id of the log in a folder. For an empty folder it makes an id. The parameter
// expected is the id that the database holds. If the log and the database do not belong together,
// storeID returns the error "store_id_mismatch" ("refused" in this table):
//
//	folder              expected  result
//	empty               none      a new id
//	empty               X         refused: the log of X is gone
//	records without id  any       refused: the log's database is not known
//	id X                X         X
//	id X                Y         refused
//	id X, no records    none      X: the first start was cut short
//	id X, records       none      refused: the database of X is gone
func storeID(dir, expected string) (string, error) {
	file := filepath.Join(dir, "store.id")
	raw, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("embedded log: %w", err)
	}
	records, err := hasRecords(dir)
	if err != nil {
		return "", err
	}
	found := string(bytes.TrimSpace(raw))
	switch {
	case found == "" && records:
		return "", mismatch("the log in %s has records but no store.id", dir)
	case found == "" && expected != "":
		return "", mismatch("the database belongs to log %s, but the folder %s holds no log", expected, dir)
	case found == "":
		found = strings.ToLower(rand.Text())
		if err := atomicfile.WriteFile(file, []byte(found+"\n")); err != nil {
			return "", fmt.Errorf("embedded log: writing store.id: %w", err)
		}
	case expected == "" && records:
		return "", mismatch("the folder %s holds log %s, but the database belongs to no log: the database is new or was emptied", dir, found)
	case expected != "" && expected != found:
		return "", mismatch("the database belongs to log %s, but the folder %s holds log %s", expected, dir, found)
	}
	return found, nil
}

func mismatch(format string, args ...any) error {
	return &notify.Error{Kind: notify.KindConflict, Code: "store_id_mismatch", Msg: fmt.Sprintf(format, args...)}
}

// hasRecords reports whether any partition of the log in the folder dir holds a record.
func hasRecords(dir string) (bool, error) {
	found := false
	err := eachSegment(dir, func(_ string, _ int64, size int64) { found = found || size > 0 }) // an empty file holds no record
	return found, err
}

// eachSegment calls the function fn for every segment of the log in the folder dir. The function
// gets the name of the partition's folder, the first offset of the segment, and the size of the
// segment in bytes.
func eachSegment(dir string, fn func(partition string, base, size int64)) error {
	root := filepath.Join(dir, "partitions")
	parts, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("embedded log: %w", err)
	}
	for _, p := range parts {
		files, err := os.ReadDir(filepath.Join(root, p.Name()))
		if err != nil {
			return fmt.Errorf("embedded log: %w", err)
		}
		for _, f := range files {
			var base int64
			if n, err := fmt.Sscanf(f.Name(), "%d.dat", &base); n != 1 || err != nil {
				continue
			}
			info, err := f.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // trimmed meanwhile
			}
			if err != nil {
				return fmt.Errorf("embedded log: %w", err)
			}
			fn(p.Name(), base, info.Size())
		}
	}
	return nil
}
