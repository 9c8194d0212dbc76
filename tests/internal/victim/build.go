package victim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Mutant breaks one mechanism by replacing text of one file, which must stand
// there once. File is relative to the repository.
type Mutant struct {
	File, Old, New string
	// By is the group of proofs that must notice, where a command has groups.
	By string
}

// apply returns the path of the mutant's file and the file's text with the mechanism
// broken. It returns an error if the text does not stand there once, or if what it
// makes of the file is no Go.
func (m Mutant) apply(root string) (file, text string, err error) {
	file = filepath.Join(root, m.File)
	src, err := os.ReadFile(file)
	if err != nil {
		return "", "", err
	}
	if n := strings.Count(string(src), m.Old); n != 1 || m.Old == m.New {
		return "", "", fmt.Errorf("the mutant's text stands %d times in %s and must stand there once, and change", n, m.File)
	}
	text = strings.Replace(string(src), m.Old, m.New, 1)
	_, err = parser.ParseFile(token.NewFileSet(), m.File, text, parser.SkipObjectResolution)
	return file, text, err
}

// Fit returns an error that names each mutant that cannot be built from the repository
// in root. A command that has mutants holds them to it by a test: text that has moved
// would be found only by the person who runs all mutants.
func Fit(root string, mutants map[string]Mutant) (err error) {
	for name, m := range mutants {
		if _, _, bad := m.apply(root); bad != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, bad))
		}
	}
	return err
}

// Build builds notifyd from the repository in root into dir, with fault points,
// and with a mutant in it where m is not nil.
func Build(ctx context.Context, root, dir string, m *Mutant) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "notifyd")
	args := []string{"build", "-tags", "faultinject", "-o", bin}
	if m != nil {
		file, text, err := m.apply(root)
		if err != nil {
			return "", err
		}
		changed := filepath.Join(dir, "mutant.go")
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			return "", err
		}
		overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
		if err != nil {
			return "", err
		}
		list := filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(list, overlay, 0o600); err != nil {
			return "", err
		}
		args = append(args, "-overlay", list)
	}
	c := exec.CommandContext(ctx, "go", append(args, "./cmd/notifyd")...)
	c.Dir = root
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return bin, nil
}
