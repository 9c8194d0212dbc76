// Package api holds the wire types of notifyd's HTTP API and its Go client.
//
// Server, intake and client share the types, so that none can drift; the published
// description is the server's /openapi.yaml. Times are RFC 3339 in UTC with
// milliseconds. The package knows nothing of how a server answers.
package api
