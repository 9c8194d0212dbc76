package server

import (
	_ "embed"
	"net/http"
)

//go:embed openapi.yaml
var openapiYAML []byte

// OpenAPI returns the API's description, OpenAPI 3.1 in YAML.
func OpenAPI() []byte { return openapiYAML }

func (s *Server) openapi(x *exchange) error {
	x.w.Header().Set("Content-Type", "application/yaml")
	x.write(http.StatusOK, openapiYAML)
	return nil
}
