package term

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
)

// Two programs that write their contexts at once leave one file that is whole, and
// neither fails.
func TestContextsWrittenAtOnce(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	getenv := func(name string) string {
		return map[string]string{"HOME": home, "XDG_CONFIG_HOME": filepath.Join(home, "config"), "XDG_STATE_HOME": filepath.Join(home, "state")}[name]
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				c, err := OpenContexts(getenv)
				if err != nil {
					t.Error(err)
					return
				}
				name := fmt.Sprint("dev", i)
				if err := c.Set(name, Context{Server: "http://127.0.0.1:1"}); err != nil {
					t.Error(err)
				}
				if err := c.Use(name); err != nil {
					t.Error(err)
				}
				if c.Current() == "" {
					t.Error("no context is chosen")
				}
			}
		})
	}
	wg.Wait()
}
