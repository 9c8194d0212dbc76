package rig

import (
	"strings"
	"testing"
)

func TestMutantsFitTheirFiles(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"attack", "faults", "growth", "outage", "rolling", "torture"} {
		mutants, err := Mutants(program)
		if err != nil {
			t.Fatal(err)
		}
		if len(mutants) == 0 {
			t.Errorf("%s has no mutants", program)
		}
		for name, m := range mutants {
			if _, _, err := m.apply("../../.."); err != nil {
				t.Errorf("%s of %s: %v", name, program, err)
			}
		}
	}
}

// TestMutantThatDoesNotFit checks the errors for a text that the file does not have, for a text that
// the file has twice, and for a change that does not parse as Go.
func TestMutantThatDoesNotFit(t *testing.T) {
	t.Parallel()
	for want, m := range map[string]Mutant{
		"occurs 0 times": {File: "tests/internal/rig/try.go", Old: "what no file has", New: "x"},
		"occurs 2 times": {File: "tests/internal/rig/try.go", Old: "\tOk(err)", New: "x"},
		"expected":       {File: "tests/internal/rig/try.go", Old: "package rig", New: "package"},
	} {
		if _, _, err := m.apply("../../.."); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", m, err, want)
		}
	}
}
