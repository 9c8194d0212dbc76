package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// TestMutantsNameGroups checks that the field By of each mutant names a group of tries. With a
// mutant, attack runs only this group.
func TestMutantsNameGroups(t *testing.T) {
	t.Parallel()
	mutants, err := rig.Mutants("attack")
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range mutants {
		if !slices.ContainsFunc(groups(), func(g group) bool { return g.name == m.By }) {
			t.Errorf("%s: no group of tries is called %q", name, m.By)
		}
	}
}

// TestRoutesAreKnown checks that every route of openapi.yaml that needs a token has a row in
// testdata/routes.txt. Without the row, "make attack" ends with an error.
func TestRoutesAreKnown(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join("..", "..", "pkg", "server", "openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	lines := rows(routeTable)
	var known []string
	for _, line := range lines {
		f := strings.Fields(line)
		known = append(known, f[0]+" "+f[1])
	}
	if lacks := missing(string(doc), known); len(lacks) > 0 {
		t.Errorf("testdata/routes.txt lacks %q, each with the scopes that open it", lacks)
	}
	if lacks := missing(string(doc), known[1:]); len(lacks) != 1 || lacks[0] != known[0] {
		t.Errorf("without %s it lacks %q", known[0], lacks)
	}
}
