// Package server is notifyd's HTTP API: routes, authentication and limits.
//
// Every request takes the same way (handle.go): admission, token, scope, rate
// of its caller, body, handler. The route table (routes.go) says of each route
// which scope it needs and which limits hold, and is checked against the
// embedded OpenAPI document by a test. Handlers return errors of
// notify.Kind, and one function (problem.go) turns them into answers.
package server
