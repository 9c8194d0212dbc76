package api

import (
	"context"
	"net/http"
	"net/url"
)

// ProviderTest is what a test of a provider found: a trial of the provider, or of each
// of its accounts or pools.
type ProviderTest struct {
	Provider string          `json:"provider"`
	DryRun   bool            `json:"dry_run"` // nothing was sent to anybody
	OK       bool            `json:"ok"`      // each trial is
	Items    []ProviderTrial `json:"items"`
}

// ProviderTrial is one call of a test.
type ProviderTrial struct {
	Account string `json:"account"` // "apns", "twilio:AC…"
	Verdict string `json:"verdict"` // ok, refused, credentials_refused, wrong_project, throttled, unreachable, unavailable
	Called  string `json:"called"`
	Status  int    `json:"status"` // HTTP; 0: no answer came
	Class   string `json:"class"`  // what a worker would make of the answer
	Code    string `json:"code,omitempty"`
	Detail  string `json:"detail,omitempty"` // what the provider or the network said
	TookMS  int64  `json:"took_ms"`
}

// ProviderTestRequest says where a test sends one real message; empty: nowhere.
type ProviderTestRequest struct {
	To string `json:"to,omitempty"`
}

// TestProvider lets the process that answers call a provider once: its dry run, or one
// real message. Only a dry run is repeated
// when its answer is lost.
func (cl *Client) TestProvider(ctx context.Context, name string, in ProviderTestRequest) (ProviderTest, error) {
	return send[ProviderTest](ctx, cl, http.MethodPost, "/v1/ops/providers/"+url.PathEscape(name)+"/test", in, in.To == "")
}
