// Package promcheck checks Grafana dashboards and Prometheus rules against the metrics of a
// server. Prometheus' own parser parses each query, and every metric, label and bucket in it must
// exist. The package only reads files and text, and keeps no state.
//
// Start reading with Check in check.go.
package promcheck
