package main

import (
	"testing"

	"github.com/notifyd/notifyd/tests/internal/victim"
)

func TestMutantsFitTheirFiles(t *testing.T) {
	t.Parallel()
	if err := victim.Fit("../..", mutants); err != nil {
		t.Error(err)
	}
}
