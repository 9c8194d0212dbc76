package rig

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/simulator"
)

// Rule adds a rule, given as JSON, to the simulators.
func (v *Victim) Rule(ctx context.Context, rule string) error {
	return v.ask(ctx, http.MethodPost, "/control/rules", rule, nil)
}

// DropRule removes a rule from the simulators. The first rule has number 1.
func (v *Victim) DropRule(ctx context.Context, number int) error {
	return v.ask(ctx, http.MethodDelete, fmt.Sprintf("/control/rules/%d", number), "", nil)
}

// Delivered returns how many distinct notifications the providers accepted.
func (v *Victim) Delivered(ctx context.Context) (int64, error) {
	var out simulator.Summary
	err := v.get(ctx, "/ledger/totals", &out)
	return int64(out.IDs), err
}

// Totals sets Duplicates, Ambiguous, Reordered and NoID in r from the providers' ledger. The counts
// are of all calls so far.
func (v *Victim) Totals(ctx context.Context, r *Result) error { return v.ledgerTotals(ctx, r) }

// Missing counts the ids that no provider has accepted, and returns some of these ids.
func (v *Victim) Missing(ctx context.Context, ids []string) (n int64, some []string, err error) {
	var out struct {
		Missing int64    `json:"missing_count"`
		IDs     []string `json:"missing"`
	}
	err = v.ask(ctx, http.MethodPost, "/ledger/check", strings.Join(ids, "\n")+"\n", &out)
	return out.Missing, out.IDs, err
}

// SentAt returns when a provider first accepted a notification. If no provider has accepted it yet,
// SentAt returns the time of the first attempt. It returns an error if there was no attempt.
func (v *Victim) SentAt(ctx context.Context, id string) (time.Time, error) {
	var ds []simulator.Delivery
	if err := v.get(ctx, "/ledger?id="+id, &ds); err != nil || len(ds) == 0 {
		return time.Time{}, err
	}
	return ds[0].At, nil
}
