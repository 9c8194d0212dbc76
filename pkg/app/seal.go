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

// keyFileInside is the name of the key file if it must be in the data folder.
const keyFileInside = "secrets-key"

// keyFileBeside returns the default path of the key file: beside the data folder, so that a
// copy of the folder does not contain the key.
func keyFileBeside(dataDir string) (string, error) {
	dir, err := filepath.Abs(dataDir)
	return dir + "." + keyFileInside, err
}

// readDefaultKeys reads the key file of a data folder from its default path, or else from
// inside the folder. It returns fs.ErrNotExist, with the default path, if there is none.
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

// makeDefaultKeys makes the key file of a data folder at its default path. It makes the file
// inside the folder instead if the path cannot be written, or if the folder is a volume of its
// own: a file beside the volume may be lost with the container.
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

// KeyAdvice returns what an operator must do before the first start of a restored folder, or ""
// for nothing. keyID names the key that sealed the secrets in the backup.
func KeyAdvice(dataDir, keyID string) string {
	keys, err := readDefaultKeys(dataDir)
	if keyID == "" || err == nil && keys.Has(keyID) {
		return ""
	}
	beside, err := keyFileBeside(dataDir)
	if err != nil {
		beside = dataDir + "." + keyFileInside
	}
	return fmt.Sprintf("the callers' signing secrets in it are sealed with key %s, which is not in the backup: before the first start copy the key file to %s, "+
		"with mode 0600, or name it in secrets.key_file", keyID, beside)
}

// sealer reads or makes the keys that seal callers' secrets.
type sealer struct{ *Node }

// sealCallers wraps the store of callers so that it seals and opens their secrets. It reads the
// key file. With embedded engines it makes the file if nothing is sealed yet, and seals secrets
// that were stored in clear or with an older key.
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
	// The process starts even so: an operator can rotate these secrets only while it runs. The
	// triggers of these callers wait until then.
	if who := unopenedCallers(report); who != "" {
		n.log.Error("signing secrets cannot be opened: their callbacks wait", "callers", who, "do", n.sealed.Repair())
	}
	changed, err := n.sealed.Reseal(ctx)
	if changed > 0 {
		n.log.Info("signing secrets were sealed", "callers", changed, "key_file", keys.File(), "key", keys.ID())
	}
	return err
}

// readKeys reads the key file. It returns nil keys if the engines are servers and no file is
// configured.
func (n sealer) readKeys() (*secrets.Keys, error) {
	switch file := n.cfg.Secrets.KeyFile; {
	case file != "":
		return secrets.ReadKeys(file)
	case n.embedded == nil:
		return nil, nil
	}
	return readDefaultKeys(n.cfg.DataDir)
}

// makeKeys makes the missing key file. It returns key_file_missing if the store has secrets
// that an earlier key file has sealed. notifyd dev makes a new file even then, because
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
		Msg: fmt.Sprintf("the key file %s is not there, and the signing secrets of %s are sealed with it: put it back from where it is kept; "+
			"where it is lost, make another one (umask 077; openssl rand -base64 32 >%s), start, and run notifyctl caller rotate-secret CALLER for each", file, someNames(report.Other), file),
	}
}

// keyFileError returns the error of the start for an error of the key file.
func keyFileError(err error) error {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code != "" && e.Code != "secret_exposed" {
		return err
	}
	return fmt.Errorf("secrets.key_file: %w", err)
}

// someNames lists up to five callers and the number of the others.
func someNames(callers []string) string {
	const most = 5
	if len(callers) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(callers[:most], ", "), len(callers)-most)
	}
	return strings.Join(callers, ", ")
}

// unopenedCallers lists the callers whose secrets cannot be opened, or returns "" for none.
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

// isWithin reports whether a file is in a folder.
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
