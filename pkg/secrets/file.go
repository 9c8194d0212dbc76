// Package secrets reads files that hold secrets. It also seals texts, so that a person who can read the
// stores or their backups cannot read the texts.
//
// ReadFile (file.go) refuses a file that every user of the machine can read. Keys (keys.go) seals and
// opens texts with AES-256-GCM. TLS (tls.go) builds the configuration of verified client connections. A
// sealed text cannot be opened if its key is missing (ErrOtherKey), if the text is damaged, or if it
// was sealed for another owner.
package secrets

import (
	"fmt"
	"os"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
)

// CheckFile returns notify.KindInvalid "secret_exposed" if every user of the machine may access the
// file. It allows access by the file's group, because containers get secrets as files of root with mode
// 0440.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return notify.Invalid("secret_exposed", "", fmt.Sprintf("%s can be accessed by everybody on this machine: chmod 600", path))
	}
	return nil
}

// ReadFile checks the file with CheckFile and returns its content. It returns the errors of
// CheckFile and of os.ReadFile. It may be called from any goroutine.
func ReadFile(path string) ([]byte, error) {
	if err := CheckFile(path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// FromConfig returns a secret of the configuration. The configuration contains either the secret
// itself (value) or the name of a file with the secret (file). If file is empty, FromConfig returns
// value. Otherwise it returns the content of the file without the line ends at its end. An error
// begins with key, the name of the setting for the file.
func FromConfig(key, value, file string) (string, error) {
	if file == "" {
		return value, nil
	}
	b, err := ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}
