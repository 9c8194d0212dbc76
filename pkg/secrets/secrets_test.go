package secrets

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

func codeOf(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e.Code
	}
	return ""
}

func TestFilesThatEverybodyReadsAreRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o644, 0o604, 0o602, 0o600, 0o440, 0o400} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		b, err := ReadFile(file)
		if exposed := codeOf(err) == "secret_exposed"; exposed != (mode&0o007 != 0) || exposed != (b == nil) {
			t.Errorf("mode %#o: %q, %v", mode, b, err)
		}
	}
	if _, err := ReadFile(file + ".missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestSealAndOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k, err := MakeKeys(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	const text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	one, two := k.Seal("shop", text), k.Seal("shop", text)
	if one == two || strings.Contains(one, text[6:]) || !strings.HasPrefix(one, "sealed:v1:"+k.ID()+":") {
		t.Errorf("sealed as %s and %s", one, two)
	}
	for _, sealed := range []string{one, two} {
		if got, err := k.Open("shop", sealed); err != nil || got != text {
			t.Errorf("opened %q, %v", got, err)
		}
	}
	if got, err := k.Open("bank", one); err == nil {
		t.Errorf("another caller's was opened: %q", got)
	}
	for i := len("sealed:v1:"); i < len(one); i++ {
		bad := []byte(one)
		if bad[i] ^= 1; string(bad) == one {
			continue
		}
		if got, err := k.Open("shop", string(bad)); err == nil {
			t.Errorf("opened with byte %d changed: %q", i, got)
		}
	}
	for _, bad := range []string{"", "sealed:", "sealed:v2:" + one[len("sealed:v1:"):], "sealed:v1:" + k.ID(), "sealed:v1:" + k.ID() + ":", one[:len(one)-3]} {
		if got, err := k.Open("shop", bad); err == nil || errors.Is(err, ErrOtherKey) {
			t.Errorf("%q opens as %q, %v", bad, got, err)
		}
	}

	other, err := MakeKeys(filepath.Join(dir, "b"))
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range []*Keys{other, nil} {
		if _, err := keys.Open("shop", one); !errors.Is(err, ErrOtherKey) || !strings.Contains(err.Error(), k.ID()) {
			t.Errorf("with another key: %v", err)
		}
	}
	// A new key in front of the old one seals, and both open.
	var both []byte
	for _, name := range []string{"b", "a"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, b...)
	}
	if err := os.WriteFile(filepath.Join(dir, "both"), both, 0o600); err != nil {
		t.Fatal(err)
	}
	rotated, err := ReadKeys(filepath.Join(dir, "both"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := rotated.Open("shop", one); err != nil || got != text || rotated.ID() != other.ID() || rotated.Current(one) || !rotated.Current(rotated.Seal("x", "y")) {
		t.Errorf("after a rotation: %q, %v, seals with %s", got, err, rotated.ID())
	}
}

func TestKeyFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	k, err := MakeKeys(file)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("made with mode %v, %v", st.Mode(), err)
	}
	if _, err := MakeKeys(file); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made a second time: %v", err)
	}
	if again, err := ReadKeys(file); err != nil || again.ID() != k.ID() || again.File() != file {
		t.Errorf("read again: %v, %v", again, err)
	}
	if names, err := os.ReadDir(filepath.Dir(file)); err != nil || len(names) != 1 {
		t.Errorf("left beside the key file: %v, %v", names, err)
	}
	const long = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3JldA=="
	for what, content := range map[string]string{"empty": "", "blank lines": "\n\n", "16 bytes": "c2VjcmV0IHNlY3JldCEhIQ==", "40 bytes": long, "no base64": "---", "a good line and a bad one": k.ID() + "\n" + long} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadKeys(file); codeOf(err) != "bad_key_file" || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), long) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKeys(file); codeOf(err) != "secret_exposed" {
		t.Errorf("a file that everybody reads: %v", err)
	}
}
