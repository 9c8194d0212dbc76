package rig

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// Audit lets the running server check that accepted = terminal + pending, and prints up to 20
// findings of the check.
func (v *Victim) Audit(ctx context.Context) (api.Conservation, error) {
	return v.AuditSince(ctx, time.Time{})
}

// AuditSince does the same as Audit, but checks only requests that were accepted at the given time
// or later.
func (v *Victim) AuditSince(ctx context.Context, since time.Time) (api.Conservation, error) {
	cl := *v.client
	h := *cl.HTTPClient
	h.Timeout = 10 * time.Minute // the audit reads everything that was accepted
	cl.HTTPClient = &h
	rep, err := cl.Conservation(ctx, since)
	if err != nil {
		return rep, fmt.Errorf("the server could not audit its requests: %w", err)
	}
	for i, f := range rep.Findings {
		if i == 20 {
			fmt.Printf("  and %d more\n", len(rep.Findings)-i)
			break
		}
		fmt.Printf("  drift: %s %s (%s) %s\n", f.Class, f.ID, f.State, f.Detail)
	}
	return rep, nil
}
