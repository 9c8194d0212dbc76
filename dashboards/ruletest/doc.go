// Package ruletest runs the alerts of ../rules on recorded series with the engine of
// Prometheus. It is a separate module, so that notifyd's module does not depend on
// Prometheus. "make rules" runs it.
package ruletest
