package users

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Whatever its form, an address comes back byte for byte, behind what was there.
func TestKeptAddresses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		address := rapid.OneOf(
			rapid.StringMatching(`apns:[0-9a-f]{1,80}`),
			rapid.StringMatching(`apns:[0-9a-fA-F]{1,80}`),
			rapid.StringMatching(`fcm:[0-9a-zA-Z_:-]{1,200}`),
			rapid.StringMatching(`\+[1-9][0-9]{6,14}`),
			rapid.StringMatching(`[a-z]{1,20}@[a-z]{1,20}\.com`),
		).Draw(t, "address")
		kept := appendAddress([]byte("before"), address)
		if got := string(appendUnpacked([]byte("before"), kept[len("before"):])); got != "before"+address {
			t.Fatalf("%q came back as %q", address, got)
		}
		one := NewAnswer(Verdict{}, address)
		if got, ok := one.AppendSingle([]byte("before")); ok && string(got) != "before"+address || ok != (len(kept)-len("before") < 0x80) {
			t.Fatalf("%q alone: %q, %v", address, got, ok)
		}
		a := NewAnswer(Verdict{}, "fcm:x", address)
		targets, _ := a.Targets(nil, nil)
		if len(targets) != 2 || string(targets[1].Address) != address || targets[1].Addr != 1 || targets[1].Of != 2 {
			t.Fatalf("%q among two: %v", address, targets)
		}
	})
}

// A user with a token of APNs takes one cache line.
func TestTokenTakesOneLine(t *testing.T) {
	t.Parallel()
	s := newSnapshot(false)
	var c sizeHistogram
	for i := range 100 {
		user := fmt.Sprintf("u%08d", i)
		v := s.packProfile(nil, &engine.Profile{User: user, OptOut: []string{"marketing"}, Addresses: map[string][]string{"push": {fmt.Sprintf("apns:%064x", i)}}}, allChannels)
		c.add(entrySize([]byte(user), v))
	}
	if p := c.plan(); p.cellSize != cacheLine || p.spill != 0 {
		t.Errorf("cells of %d bytes, %d spilled", p.cellSize, p.spill)
	}
}

// Both ways to write digits write the same, and nothing beside it.
func TestHexWritesItsOwnBytesOnly(t *testing.T) {
	t.Parallel()
	kept := make([]byte, 200)
	for i := range kept {
		kept[i] = byte(i*37 + 11)
	}
	for n := range kept {
		want := fmt.Sprintf("%x", kept[:n])
		for name, write := range map[string]func(b, kept []byte) []byte{"hexAppend": hexAppend, "hexWords": hexWords} {
			const behind = "behind"
			room := append(append([]byte("before"), make([]byte, 2*n+8)...), behind...)
			got := write(room[:len("before"):len(room)-len(behind)], kept[:n])
			if string(got[:len("before")+2*n]) != "before"+want {
				t.Fatalf("%s of %d bytes: %q", name, n, got)
			}
			if string(room[len(room)-len(behind):]) != behind {
				t.Fatalf("%s of %d bytes wrote behind its room", name, n)
			}
		}
	}
}
