package memory_test

import (
	"testing"

	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/store"
)

func TestFilter(t *testing.T) {
	enginetest.Filter(t, func(t enginetest.T) (store.Filter, func() store.Filter) {
		f, err := memory.NewFilter(enginetest.FilterRate, enginetest.FilterWindow)
		if err != nil {
			t.Fatal(err)
		}
		return f, nil
	})
}
