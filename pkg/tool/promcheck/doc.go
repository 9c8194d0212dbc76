// Package promcheck checks Grafana dashboards and Prometheus rules against the metrics of a server.
// Prometheus' own parser parses each query. Every metric, label and bucket in the query must exist.
// The package only reads files and text, and keeps no state.
//
// Start reading at Check in check.go.
package promcheck
