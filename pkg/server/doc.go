// Package server is notifyd's HTTP API: routes, authentication and limits.
//
// Every request takes the same way through handle.go: admission, token, scope, rate of its
// caller, body, handler. The route table in routes.go says which scope and which limits apply to
// each route; a test compares it with the embedded OpenAPI document. Handlers return errors of
// notify.Kind, and exchange.fail turns each into an answer.
//
// What protects the server from too much:
//
//	connections.go  how many connections are open; strangers give way to callers
//	rate.go         requests per second of a caller, over all processes
//	memory.go       bytes of request bodies at once, shared between callers
//	open.go         bodies of requests without a token
//
// Start reading with handle.go and routes.go.
package server
