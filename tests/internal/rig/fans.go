package rig

import (
	"context"
	"net/url"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Fan is what providers were sent of one fan-out.
type Fan struct {
	Base       notify.Base
	IDs        int64 `json:"ids"`        // distinct receivers
	Duplicates int64 `json:"duplicates"` // calls beyond the first of a receiver
}

// Fans returns what the providers' ledger says of each fan-out.
func (v *Victim) Fans(ctx context.Context) (map[notify.Base]Fan, error) {
	var list []struct {
		Base string `json:"base"`
		Fan
	}
	if err := v.get(ctx, v.control+"/ledger/bases", &list); err != nil {
		return nil, err
	}
	out := make(map[notify.Base]Fan, len(list))
	for _, f := range list {
		base, err := notify.ParseBase(f.Base)
		if err != nil {
			return nil, err
		}
		f.Fan.Base = base
		out[base] = f.Fan
	}
	return out, nil
}

// Providers returns host:port of each simulated provider that a worker calls.
func (v *Victim) Providers(ctx context.Context) (out []string, err error) {
	var urls map[string]string
	if err := v.get(ctx, v.control+"/urls.json", &urls); err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, name := range []string{"apns", "fcm", "fcm_token", "twilio", "sendgrid"} {
		u, err := url.Parse(urls[name])
		if err != nil {
			return nil, err
		}
		if u.Host != "" && !known[u.Host] {
			known[u.Host] = true
			out = append(out, u.Host)
		}
	}
	return out, nil
}
