package victim

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Mutant breaks one mechanism by replacing text of one file, which must stand
// there once. File is relative to the repository.
type Mutant struct {
	File, Old, New string
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
		file := filepath.Join(root, m.File)
		src, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if strings.Count(string(src), m.Old) != 1 {
			return "", fmt.Errorf("the mutant's text does not stand once in %s", m.File)
		}
		changed := filepath.Join(dir, "mutant.go")
		if err := os.WriteFile(changed, []byte(strings.Replace(string(src), m.Old, m.New, 1)), 0o600); err != nil {
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
