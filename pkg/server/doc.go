// Package server is notifyd's HTTP API: routes, authentication and limits.
//
// Every request with a token passes these steps in handle.go: limit of concurrent requests, token,
// scope, rate of its caller, admission (only batches and fan-outs), body, handler. The route table
// in routes.go contains the scope and the limits of each route; a test compares it with the
// embedded OpenAPI document. Handlers return errors with a notify.Kind, and exchange.fail turns
// each error into an answer.
//
// These files protect the server from overload:
//
//	connections.go  number of open connections; clients without a token are closed first
//	rate.go         requests per second of a caller, for all processes together
//	memory.go       bytes of request bodies at the same time, shared between callers
//	open.go         bodies of requests without a token
//
// Start reading with handle.go and routes.go.
package server
