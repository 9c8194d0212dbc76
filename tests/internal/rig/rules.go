package rig

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Rule adds a rule of the simulators, in JSON.
func (v *Victim) Rule(ctx context.Context, rule string) error {
	return v.control2xx(ctx, http.MethodPost, "/control/rules", rule)
}

// DropRule removes a rule; the first has number 1.
func (v *Victim) DropRule(ctx context.Context, number int) error {
	return v.control2xx(ctx, http.MethodDelete, fmt.Sprintf("/control/rules/%d", number), "")
}

func (v *Victim) control2xx(ctx context.Context, method, path, rule string) error {
	req, err := http.NewRequestWithContext(ctx, method, v.control+path, strings.NewReader(rule))
	if err != nil {
		return err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return err
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s %s: %s %s", method, path, rule, resp.Status, b)
	}
	return nil
}

// Delivered is how many notifications the providers took, each counted once.
func (v *Victim) Delivered(ctx context.Context) (int64, error) {
	var out struct {
		IDs int64 `json:"ids"`
	}
	err := v.get(ctx, v.control+"/ledger/totals", &out)
	return out.IDs, err
}

// Totals fills in what the providers' ledger says of all calls.
func (v *Victim) Totals(ctx context.Context, r *Result) error { return v.ledgerTotals(ctx, r) }

// Missing counts the ids that no provider was sent, and returns some of them.
func (v *Victim) Missing(ctx context.Context, ids []string) (n int64, some []string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.control+"/ledger/check", strings.NewReader(strings.Join(ids, "\n")+"\n"))
	if err != nil {
		return 0, nil, err
	}
	var out struct {
		Missing int64    `json:"missing_count"`
		IDs     []string `json:"missing"`
	}
	err = v.do(req, &out)
	return out.Missing, out.IDs, err
}

// SentAt is when a provider was first sent a notification.
func (v *Victim) SentAt(ctx context.Context, id string) (time.Time, error) {
	var ds []struct {
		At time.Time `json:"at"`
	}
	if err := v.get(ctx, v.control+"/ledger?id="+id, &ds); err != nil || len(ds) == 0 {
		return time.Time{}, err
	}
	return ds[0].At, nil
}
