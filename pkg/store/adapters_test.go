package store_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

var bg = context.Background()

// opened are the contracts over one adapter. reopen ends the store as a loss of power
// would, and opens what is durable; it does nothing where nothing is.
type opened struct {
	*store.Contracts
	reopen func()
}

// overEach runs a test over each adapter of rows.
func overEach(t *testing.T, test func(t *testing.T, open func(t *testing.T) *opened)) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(t, func(*testing.T) *opened { return &opened{memory.New().Contracts, func() {}} })
	})
	t.Run("pebble", func(t *testing.T) {
		t.Parallel()
		test(t, onPebble)
	})
}

func onPebble(t *testing.T) *opened {
	var s *pebble.Store
	o := &opened{}
	start := func(fs *vfs.MemFS) {
		var err error
		if s, err = pebble.Open(pebble.Config{Dir: "data", FS: fs, CacheBytes: 1 << 20, MemTableBytes: 256 << 10}); err != nil {
			t.Fatal(err)
		}
		o.Contracts = s.Contracts
	}
	fs := vfs.NewCrashableMem()
	start(fs)
	t.Cleanup(func() { must(t, s.Close()) })
	o.reopen = func() {
		left := fs.CrashClone(vfs.CrashCloneCfg{})
		must(t, s.Close())
		fs = left
		start(fs)
	}
	return o
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func val[V any](v V, err error) func(*testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		must(t, err)
		return v
	}
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// base returns a base made at ms with a number in it.
func base(ms int64, n uint64) (b notify.Base) {
	for i := range 6 {
		b[i] = byte(ms >> (40 - 8*i))
	}
	for i := range 8 {
		b[8+i] = byte(n >> (56 - 8*i))
	}
	return b
}
