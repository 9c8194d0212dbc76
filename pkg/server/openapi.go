package server

import _ "embed"

//go:embed openapi.yaml
var openapiYAML []byte

// OpenAPI returns the API's description, OpenAPI 3.1 in YAML.
func OpenAPI() []byte { return openapiYAML }
