package memory_test

import (
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/engine/memory"
)

func TestFilter(t *testing.T) {
	enginetest.Filter(t, func(t enginetest.T) (engine.Filter, func() engine.Filter) {
		f, err := memory.NewFilter(enginetest.FilterRate, enginetest.FilterWindow)
		if err != nil {
			t.Fatal(err)
		}
		return f, nil
	})
}
