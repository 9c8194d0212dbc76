package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/users"
)

// keyFileInside is the name of the key file when the file is inside the data folder.
const keyFileInside = "secrets-key"

// keyFileBeside returns the default path of the key file. It is next to the data folder and not inside,
// so that a copy of the folder does not contain the key.
func keyFileBeside(dataDir string) (string, error) {
	dir, err := filepath.Abs(dataDir)
	return dir + "." + keyFileInside, err
}

// readDefaultKeys reads the key file of a data folder from its default path. If there is no file at the
// path, it reads the key file inside the folder. If neither exists, it returns fs.ErrNotExist with the
// default path.
func readDefaultKeys(dataDir string) (*secrets.Keys, error) {
	beside, err := keyFileBeside(dataDir)
	if err != nil {
		return nil, err
	}
	keys, err := secrets.ReadKeys(beside)
	if !errors.Is(err, fs.ErrNotExist) {
		return keys, err
	}
	if keys, inside := secrets.ReadKeys(filepath.Join(dataDir, keyFileInside)); !errors.Is(inside, fs.ErrNotExist) {
		return keys, inside
	}
	return nil, err
}

// makeDefaultKeys makes the key file of a data folder at its default path. In two cases it makes
// the file inside the folder instead: the path cannot be written, or the folder is on a volume that
// the path is not on. A file outside the volume may be lost when the container is removed.
func makeDefaultKeys(dataDir string) (*secrets.Keys, error) {
	beside, err := keyFileBeside(dataDir)
	if err != nil {
		return nil, err
	}
	if atomicfile.SameVolume(filepath.Dir(beside), dataDir) {
		keys, err := secrets.MakeKeys(beside)
		if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
			return keys, err
		}
	}
	return secrets.MakeKeys(filepath.Join(dataDir, keyFileInside))
}

// KeyAdvice returns what an operator must do before the first start of a restored folder. It
// returns "" if nothing needs to be done. The parameter keyID is the id of the key that sealed the
// secrets in the backup.
func KeyAdvice(dataDir, keyID string) string {
	keys, err := readDefaultKeys(dataDir)
	if keyID == "" || err == nil && keys.Has(keyID) {
		return ""
	}
	beside, err := keyFileBeside(dataDir)
	if err != nil {
		beside = dataDir + "." + keyFileInside
	}
	return fmt.Sprintf("the callers' signing secrets in the restored folder are sealed with key %s, which is not in the backup: before the first start copy the key file to %s, "+
		"with mode 0600, or name it in secrets.key_file", keyID, beside)
}

// sealer reads or makes the keys that seal callers' secrets.
type sealer struct{ *Node }

// sealCallers reads the key file and wraps the store of callers. The wrapped store seals the
// callers' secrets when it writes them and opens them when it reads them. With embedded engines
// sealCallers also makes the key file if no secret is sealed yet, and seals the secrets that were
// stored in clear or with an older key.
func (n sealer) sealCallers(ctx context.Context) error {
	keys, err := n.readKeys()
	if n.embedded == nil {
		if err != nil {
			return fmt.Errorf("secrets.key_file: %w", err)
		}
		n.sealed = users.NewSealedCallers(n.st.callers, keys, n.log)
		n.st.callers = n.sealed
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		keys, err = n.makeKeys(ctx)
	}
	if err != nil {
		return keyFileError(err)
	}
	n.sealed = users.NewSealedCallers(n.st.callers, keys, n.log)
	n.st.callers = n.sealed
	report, err := n.sealed.Report(ctx)
	if err != nil {
		return err
	}
	// The process starts although secrets cannot be opened, because an operator can replace them only
	// while it runs. Until the operator does so, the triggers of these callers wait.
	if who := unopenedCallers(report); who != "" {
		n.log.Error("signing secrets cannot be opened, so the callbacks of their callers wait", "callers", who, "do", n.sealed.Repair())
	}
	changed, err := n.sealed.Reseal(ctx)
	if changed > 0 {
		n.log.Info("signing secrets were sealed", "callers", changed, "key_file", keys.File(), "key", keys.ID())
	}
	return err
}

// readKeys reads the key file. If the engines are servers and no file is configured, it returns nil
// keys.
func (n sealer) readKeys() (*secrets.Keys, error) {
	switch file := n.cfg.Secrets.KeyFile; {
	case file != "":
		return secrets.ReadKeys(file)
	case n.embedded == nil:
		return nil, nil
	}
	return readDefaultKeys(n.cfg.DataDir)
}

// makeKeys makes the missing key file. If the store has secrets that the key of an earlier file has
// sealed, it returns key_file_missing. notifyd dev makes a new file even in this case, because
// SeedCaller gives its caller a new secret.
func (n sealer) makeKeys(ctx context.Context) (*secrets.Keys, error) {
	report, err := users.NewSealedCallers(n.st.callers, nil, n.log).Report(ctx)
	if err != nil {
		return nil, err
	}
	file := n.cfg.Secrets.KeyFile
	if len(report.Other) == 0 || n.cfg.Dev {
		if file != "" {
			return secrets.MakeKeys(file)
		}
		return makeDefaultKeys(n.cfg.DataDir)
	}
	if file == "" {
		if file, err = keyFileBeside(n.cfg.DataDir); err != nil {
			return nil, err
		}
	}
	return nil, &notify.Error{
		Kind: notify.KindUnavailable, Code: "key_file_missing", Field: "secrets.key_file",
		Msg: fmt.Sprintf("the key file %s is missing, and the signing secrets of %s are sealed with its key: put the file back from your copy; "+
			"if the file is lost, make a new one (umask 077; openssl rand -base64 32 >%s), start, and run notifyctl caller rotate-secret CALLER for each of these callers", file, someNames(report.Other), file),
	}
}

// keyFileError returns the error of a start that fails because of the key file. It adds the name of
// the setting to errors without an error code and to secret_exposed. It returns all other errors
// unchanged.
func keyFileError(err error) error {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code != "" && e.Code != "secret_exposed" {
		return err
	}
	return fmt.Errorf("secrets.key_file: %w", err)
}

// someNames lists up to five callers. If there are more, it adds how many more.
func someNames(callers []string) string {
	const most = 5
	if len(callers) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(callers[:most], ", "), len(callers)-most)
	}
	return strings.Join(callers, ", ")
}

// unopenedCallers lists the callers whose secrets cannot be opened. It returns "" if there are none.
func unopenedCallers(r users.SealReport) string {
	var parts []string
	if len(r.Other) > 0 {
		parts = append(parts, "sealed with another key: "+someNames(r.Other))
	}
	if len(r.Damaged) > 0 {
		parts = append(parts, "damaged: "+someNames(r.Damaged))
	}
	return strings.Join(parts, "; ")
}

func sealedBy(keys *secrets.Keys) string {
	if keys == nil {
		return ", no key file"
	}
	return fmt.Sprintf(", sealed with key %s of %s", keys.ID(), keys.File())
}

// isWithin reports whether a file is in a folder or in one of its subfolders.
func isWithin(file, dir string) bool {
	at, err := os.Stat(dir)
	for d := filepath.Dir(file); err == nil; d = filepath.Dir(d) {
		if one, err := os.Stat(d); err == nil && os.SameFile(one, at) {
			return true
		}
		if d == filepath.Dir(d) {
			break
		}
	}
	return false
}
