// Package api holds the wire types of notifyd's HTTP API and its Go client.
//
// Server, intake and client share the types, so that they cannot diverge. The published
// description of the API is the server's /openapi.yaml. Times are RFC 3339 in UTC with
// milliseconds. The package does not know how a server answers.
//
// Start reading with types.go (notifications), triggers.go, operators.go and jobs.go for the
// types, and with client.go for the client: Client.do sends a request and decides about retries.
package api
