// Package ruletest runs the alerts of ../rules against recorded series with
// Prometheus' own engine. It is a module of its own, to keep Prometheus out of the
// product's; "make rules" runs it.
package ruletest
