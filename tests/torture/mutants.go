package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// mutant breaks one mechanism by replacing text of one file. The torture must
// notice, else it proves nothing.
type mutant struct {
	file, old, new string
}

var mutants = map[string]mutant{
	// The group commits what it has read instead of what is done.
	"auto-commit": {
		"pkg/stream/tracker.go", "t.head < len(t.pending) && t.pending[t.head].done.Load() {", "t.head < len(t.pending) {",
	},
	// Windows are called without a durable claim.
	"no-claims": {
		"pkg/worker/job.go", "func (j *job) claim(w *window) error {",
		"func (j *job) claim(w *window) error {\n\tif w != nil {\n\t\treturn nil\n\t}",
	},
	// The record is marked before its outcome is durable.
	"mark-first": {
		"pkg/worker/job.go", "\tfault.Hit(\"before-outcome\")\n",
		"\tj.msg.Done()\n\tfault.Hit(\"before-outcome\")\n",
	},
}

func mutantNames() []string { return slices.Sorted(maps.Keys(mutants)) }

// build builds notifyd with fault points, and with a mutant in it.
func build(ctx context.Context, dir, name string) (string, error) {
	bin := filepath.Join(dir, "notifyd")
	args := []string{"build", "-tags", "faultinject", "-o", bin}
	if name != "" {
		m, ok := mutants[name]
		if !ok {
			return "", fmt.Errorf("no mutant is called %q; there are %s", name, strings.Join(mutantNames(), ", "))
		}
		src, err := os.ReadFile(m.file)
		if err != nil {
			return "", err
		}
		if strings.Count(string(src), m.old) != 1 {
			return "", fmt.Errorf("mutant %s: its text does not stand once in %s", name, m.file)
		}
		changed := filepath.Join(dir, "mutant.go")
		if err := os.WriteFile(changed, []byte(strings.Replace(string(src), m.old, m.new, 1)), 0o600); err != nil {
			return "", err
		}
		abs, err := filepath.Abs(m.file)
		if err != nil {
			return "", err
		}
		overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{abs: changed}})
		if err != nil {
			return "", err
		}
		file := filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(file, overlay, 0o600); err != nil {
			return "", err
		}
		args = append(args, "-overlay", file)
	}
	c := exec.CommandContext(ctx, "go", append(args, "./cmd/notifyd")...)
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return bin, nil
}
