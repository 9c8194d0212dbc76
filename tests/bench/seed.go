package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// seed stores the profiles of the users u00000000, u00000001 and so on in a data folder. No node
// may have the folder open. If the parameter with is inProfiles, each profile has a push address of
// 64 bytes. Of all users, 2% have opted out of marketing by push and email, and another 1% have
// opted out of all SMS. seed does nothing if the folder was seeded before.
func seed(ctx context.Context, dir string, users int, with addresses) {
	mark := filepath.Join(dir, fmt.Sprintf("seeded-%d-%s", users, with))
	if _, err := os.Stat(mark); err == nil {
		return
	}
	store := rig.Must(pebble.Open(pebble.Config{Dir: filepath.Join(dir, "store")}))
	rig.InSteps(ctx, users, 10_000, 4, func(ctx context.Context, from, to int) {
		ps := make([]engine.Profile, 0, to-from)
		for u := from; u < to; u++ {
			if p := profile(u, with); p.Addresses != nil || p.OptOut != nil {
				ps = append(ps, p)
			}
		}
		rig.Ok(store.Prefs().PutMany(ctx, ps))
	})
	rig.Ok(store.Close())
	rig.Ok(os.WriteFile(mark, nil, 0o600))
}

// addresses says where the addresses of receivers are.
type addresses string

const (
	inProfiles addresses = "profiles" // in the stored profiles; the worker looks up each receiver
	inRequest  addresses = "request"  // in the request, for each receiver
)

func profile(u int, with addresses) engine.Profile {
	p := engine.Profile{User: fmt.Sprintf("u%08d", u)}
	if with == inProfiles {
		p.Addresses = map[string][]string{"push": {fmt.Sprintf("apns:%059x", uint64(u)*0x9e3779b97f4a7c15)}}
	}
	// The hash spreads the users with an opt-out evenly over all users.
	switch h := uint32(u) * 2654435761 >> 8 % 300; {
	case h < 6:
		p.OptOut = []string{"push/marketing", "email/marketing"}
	case h < 9:
		p.OptOut = []string{"sms"}
	}
	return p
}
