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

// insideKeys is the name of the key file where it has to be in the data folder.
const insideKeys = "secrets-key"

// besideKeys is where the key file of a data folder is by default: beside it, so that
// a copy of the folder does not hold it.
func besideKeys(dataDir string) (string, error) {
	dir, err := filepath.Abs(dataDir)
	return dir + "." + insideKeys, err
}

// readDefaultKeys reads the key file of a data folder from where it is by default. It
// returns fs.ErrNotExist, with the place beside the folder, where there is none.
func readDefaultKeys(dataDir string) (*secrets.Keys, error) {
	beside, err := besideKeys(dataDir)
	if err != nil {
		return nil, err
	}
	keys, err := secrets.ReadKeys(beside)
	if !errors.Is(err, fs.ErrNotExist) {
		return keys, err
	}
	if keys, inside := secrets.ReadKeys(filepath.Join(dataDir, insideKeys)); !errors.Is(inside, fs.ErrNotExist) {
		return keys, inside
	}
	return nil, err
}

// makeDefaultKeys makes the key file of a data folder. It is in the folder only where
// it cannot be beside it, or might not stay there: where the folder is a volume of its
// own, as in a container, what is beside it may go with the container.
func makeDefaultKeys(dataDir string) (*secrets.Keys, error) {
	beside, err := besideKeys(dataDir)
	if err != nil {
		return nil, err
	}
	if atomicfile.SameVolume(filepath.Dir(beside), dataDir) {
		keys, err := secrets.MakeKeys(beside)
		if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
			return keys, err
		}
	}
	return secrets.MakeKeys(filepath.Join(dataDir, insideKeys))
}

// KeyAdvice says what a folder that was restored needs before its first start;
// empty: nothing. keyID names the key that sealed the secrets of the backup.
func KeyAdvice(dataDir, keyID string) string {
	keys, err := readDefaultKeys(dataDir)
	if keyID == "" || err == nil && keys.Has(keyID) {
		return ""
	}
	beside, err := besideKeys(dataDir)
	if err != nil {
		beside = dataDir + "." + insideKeys
	}
	return fmt.Sprintf("the callers' signing secrets in it are sealed with key %s, which is not in the backup: before the first start copy the key file to %s, "+
		"with mode 0600, or name it in secrets.key_file", keyID, beside)
}

// sealer reads, or makes, the keys of callers' secrets.
type sealer struct{ *Node }

// sealCallers puts the seal before the store of callers. It reads the key file, or
// makes one where the engines are this process's own and nothing is sealed yet. What
// was stored in clear, or with an older key, is sealed then.
func (n sealer) sealCallers(ctx context.Context) error {
	keys, err := n.readKeys()
	if n.own == nil {
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
	// It starts all the same: secrets can be made anew only while it runs, and triggers
	// of these callers wait.
	if who := unopened(report); who != "" {
		n.log.Error("signing secrets cannot be opened: their callbacks wait", "callers", who, "do", n.sealed.Repair())
	}
	changed, err := n.sealed.Reseal(ctx)
	if changed > 0 {
		n.log.Info("signing secrets were sealed", "callers", changed, "key_file", keys.File(), "key", keys.ID())
	}
	return err
}

// readKeys reads the key file. It returns nil keys where the engines are servers and
// none is named.
func (n sealer) readKeys() (*secrets.Keys, error) {
	switch file := n.cfg.Secrets.KeyFile; {
	case file != "":
		return secrets.ReadKeys(file)
	case n.own == nil:
		return nil, nil
	}
	return readDefaultKeys(n.cfg.DataDir)
}

// makeKeys makes the key file that is missing, unless the store holds what one that
// was there has sealed. notifyd dev makes one all the same: SeedCaller gives its caller
// another secret.
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
		if file, err = besideKeys(n.cfg.DataDir); err != nil {
			return nil, err
		}
	}
	return nil, &notify.Error{
		Kind: notify.KindUnavailable, Code: "key_file_missing", Field: "secrets.key_file",
		Msg: fmt.Sprintf("the key file %s is not there, and the signing secrets of %s are sealed with it: put it back from where it is kept; "+
			"where it is lost, make another one (umask 077; openssl rand -base64 32 >%s), start, and run notifyctl caller rotate-secret CALLER for each", file, named(report.Other), file),
	}
}

// keyFileError is the error of a key file as the start tells it.
func keyFileError(err error) error {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code != "" && e.Code != "secret_exposed" {
		return err
	}
	return fmt.Errorf("secrets.key_file: %w", err)
}

// named names a few callers.
func named(callers []string) string {
	const most = 5
	if len(callers) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(callers[:most], ", "), len(callers)-most)
	}
	return strings.Join(callers, ", ")
}

// unopened names the callers whose secrets do not open; empty: there is none.
func unopened(r users.SealReport) string {
	var parts []string
	if len(r.Other) > 0 {
		parts = append(parts, "sealed with another key: "+named(r.Other))
	}
	if len(r.Damaged) > 0 {
		parts = append(parts, "damaged: "+named(r.Damaged))
	}
	return strings.Join(parts, "; ")
}

func sealedBy(keys *secrets.Keys) string {
	if keys == nil {
		return ", no key file"
	}
	return fmt.Sprintf(", sealed with key %s of %s", keys.ID(), keys.File())
}

// within reports whether a file is in a folder.
func within(file, dir string) bool {
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
