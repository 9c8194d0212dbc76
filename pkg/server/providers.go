package server

import (
	"context"
	"encoding/json"

	"github.com/notifyd/notifyd/pkg/api"
)

const testProviderPath = "/v1/ops/providers/{name}/test"

// TestProvider calls a provider, or one of its accounts, once: its dry run, or with
// in.To one real message. It returns notify.KindNotFound for an unknown name and
// notify.KindConflict where this process does not call the provider. It calls
// notify.BeforeAct before the provider.
type TestProvider func(ctx context.Context, name string, in api.ProviderTestRequest) (api.ProviderTest, error)

func (s *Server) testProvider(x *exchange) error {
	in, err := bodyOf[api.ProviderTestRequest](x)
	if err != nil {
		return err
	}
	return x.reply(s.deps.TestProvider(x.r.Context(), x.r.PathValue("name"), in))
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
