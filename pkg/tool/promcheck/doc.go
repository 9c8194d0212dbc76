// Package promcheck holds Grafana dashboards and Prometheus rules against the
// metrics a server has: each query is parsed by Prometheus' own parser, and every
// metric, label and bucket it names must exist. It reads files and text only, and
// keeps no state.
package promcheck
