package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A mutant replaces text in a file. Text that has moved would be found only by
// whoever runs all mutants, an hour later.
func TestMutantsFitTheirFiles(t *testing.T) {
	t.Parallel()
	for name, m := range mutants {
		b, err := os.ReadFile(filepath.Join("..", "..", m.File))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if n := strings.Count(string(b), m.Old); n != 1 {
			t.Errorf("%s: its text stands %d times in %s, want once", name, n, m.File)
		}
		if m.Old == m.New {
			t.Errorf("%s changes nothing", name)
		}
	}
}
