package server

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

const testProviderPath = "/v1/ops/providers/{name}/test"

// TestProvider calls a provider, or one of its accounts, once: its dry run, or with
// in.To one real message. It returns notify.KindNotFound for an unknown name and
// notify.KindConflict where this process does not call the provider. It calls
// notify.BeforeAct before the provider.
type TestProvider func(ctx context.Context, name string, in api.ProviderTestRequest) (api.ProviderTest, error)

func (s *Server) testProvider(x *exchange) error {
	if s.deps.TestProvider == nil {
		return notify.Unavailable("providers", 0, nil)
	}
	if err := x.only(); err != nil {
		return err
	}
	var in api.ProviderTestRequest
	if err := x.decode(&in); err != nil {
		return err
	}
	out, err := s.deps.TestProvider(x.r.Context(), x.r.PathValue("name"), in)
	if err != nil {
		return err
	}
	return x.json(http.StatusOK, out)
}

// testAction names a test for the audit log, which keeps no address: a dry run, or one
// that sends.
func testAction(body []byte) string {
	var in api.ProviderTestRequest
	if json.Unmarshal(body, &in) == nil && in.To != "" {
		return "provider.test-send"
	}
	return "provider.test"
}
