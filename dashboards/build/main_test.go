package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestCommitted holds the committed files against what the program writes.
func TestCommitted(t *testing.T) {
	t.Parallel()
	files, err := build()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(name)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what go run ./dashboards/build writes (%v)", name, err)
		}
	}
	there, err := filepath.Glob("../grafana/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range there {
		if _, ok := files["grafana/"+filepath.Base(file)]; !ok {
			t.Errorf("%s is written by nobody", file)
		}
	}
}
