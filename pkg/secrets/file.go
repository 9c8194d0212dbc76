// Package secrets reads files that hold secrets, and seals texts so that whoever
// has the stores or their backups cannot read them.
package secrets

import (
	"fmt"
	"os"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
)

// CheckFile returns notify.KindInvalid "secret_exposed" for a file that everybody
// on the machine may read or write. Its group may read it: containers are given
// secrets as files of root with mode 0440.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return notify.Invalid("secret_exposed", "", fmt.Sprintf("%s can be read by everybody on this machine: chmod 600", path))
	}
	return nil
}

// ReadFile returns what a file holds. Its errors are those of CheckFile and of
// os.ReadFile. It may be called from any goroutine.
func ReadFile(path string) ([]byte, error) {
	if err := CheckFile(path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// Of returns a secret of the configuration: what file holds, without the end of its last
// line, or value where file is empty. Errors name key, which is file's.
func Of(key, value, file string) (string, error) {
	if file == "" {
		return value, nil
	}
	b, err := ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}
