package store

import (
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
)

// TestHeadersReadWhileWriting: what a reader saw between the moment a writer began
// and the moment its row became visible is not believed afterwards, whatever the
// writer wrote. Torture found a cancelled trigger that was claimed by it.
func TestHeadersReadWhileWriting(t *testing.T) {
	t.Parallel()
	for state := engine.TriggerPending; state <= engine.TriggerExpired; state++ {
		var c triggerHeads
		old := triggerHeader{version: 1, state: engine.TriggerPending, caller: "shop"}
		before := c.beginRead("trg_1")
		c.invalidate("trg_1")
		c.addRead("trg_1", old, c.beginRead("trg_1"))
		c.addWritten("trg_1", triggerHeader{version: 2, state: state, caller: "shop"})
		if h, ok := c.lookUp("trg_1"); ok && h.version != 2 {
			t.Errorf("written as %d: version %d is believed", state, h.version)
		}
		c.addRead("trg_1", old, before)
		if h, ok := c.lookUp("trg_1"); ok && h.version != 2 {
			t.Errorf("written as %d: version %d, read before, is believed", state, h.version)
		}
	}
}
