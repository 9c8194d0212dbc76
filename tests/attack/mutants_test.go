package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMutantsFitTheirFiles: what they replace stands once in its file.
func TestMutantsFitTheirFiles(t *testing.T) {
	t.Parallel()
	for name, m := range mutants {
		b, err := os.ReadFile(filepath.Join("..", "..", m.File))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(b), m.Old); n != 1 {
			t.Errorf("%s: its text stands %d times in %s", name, n, m.File)
		}
	}
}
