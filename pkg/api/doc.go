// Package api contains the wire types of notifyd's HTTP API and its Go client.
//
// Server, intake and client use the same types, so that they cannot differ. The published
// description of the API is /openapi.yaml of the server. Times are RFC 3339 in UTC with
// milliseconds. The package contains no code of the server.
//
// Start reading with types.go (notifications), triggers.go, operators.go and jobs.go for the types.
// Read client.go for the client: Client.do sends a request and decides about retries.
package api
