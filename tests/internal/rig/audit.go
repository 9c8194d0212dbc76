package rig

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// Audit runs the audit of accepted = terminal + pending on the running server and prints its
// findings.
func (v *Victim) Audit(ctx context.Context) (api.Conservation, error) {
	return v.AuditSince(ctx, time.Time{})
}

// AuditSince is like Audit for requests accepted since a time.
func (v *Victim) AuditSince(ctx context.Context, since time.Time) (api.Conservation, error) {
	cl := *v.client
	h := *cl.HTTPClient
	h.Timeout = 10 * time.Minute // it reads all that was accepted
	cl.HTTPClient = &h
	rep, err := cl.Conservation(ctx, since)
	if err != nil {
		return rep, fmt.Errorf("the audit: %w", err)
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
