package rig

import (
	"context"
	"net/url"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// Fan has the counts of the calls for one fan-out in the providers' ledger.
type Fan struct {
	IDs        int64 // distinct receivers that a provider accepted
	Duplicates int64 // calls that a provider accepted again for the same receiver and address
}

// Fans returns the counts of each fan-out in the providers' ledger. The key of the map is the base
// of the fan-out's ids.
func (v *Victim) Fans(ctx context.Context) (fans map[notify.Base]Fan, err error) {
	defer Catch(&err)
	var list []simulator.BaseCount
	Ok(v.get(ctx, "/ledger/bases", &list))
	fans = make(map[notify.Base]Fan, len(list))
	for _, f := range list {
		fans[Must(notify.ParseBase(f.Base))] = Fan{int64(f.IDs), int64(f.Duplicates)}
	}
	return fans, nil
}

// Providers returns the address (host:port) of each simulated provider that a worker calls.
func (v *Victim) Providers(ctx context.Context) (out []string, err error) {
	defer Catch(&err)
	var u simulator.URLs
	Ok(v.get(ctx, "/urls.json", &u))
	for _, text := range []string{u.APNs, u.FCM, u.Twilio, u.SendGrid} {
		out = append(out, Must(url.Parse(text)).Host)
	}
	return out, nil
}
