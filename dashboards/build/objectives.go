package main

import (
	"fmt"
	"strings"
)

// objective is one promise of DESIGN.md. It contains queries for the rate of bad events and for the
// rate of all events.
type objective struct {
	slo, alert, promise string
	budget              string // share that may be bad
	bad, all            string // queries for the two rates; WINDOW stands for a window such as 5m
	dashboard           string
}

// slowQueries returns two queries on a histogram: the rate of the events whose value is above the
// bound, and the rate of all events. Prometheus 3 and OpenMetrics write the label of a whole number
// such as 1 as "1.0", so the query matches both forms of a bound.
func slowQueries(name, matchers, bound string) (bad, all string) {
	if matchers != "" {
		matchers += ","
	}
	le := fmt.Sprintf("le=%q", bound)
	if !strings.Contains(bound, ".") {
		le = fmt.Sprintf(`le=~"%s|%s.0"`, bound, bound)
	}
	all = fmt.Sprintf("sum(rate(%s_count{%s}[WINDOW]))", name, strings.TrimSuffix(matchers, ","))
	return fmt.Sprintf("(%s - sum(rate(%s_bucket{%s%s}[WINDOW])))", all, name, matchers, le), all
}

// latencyObjective returns the objective that 99% of the events of a histogram do not exceed the
// bound.
func latencyObjective(slo, alert, promise, dashboard, name, matchers, bound string) objective {
	o := objective{slo: slo, alert: alert, promise: promise, budget: "0.01", dashboard: dashboard}
	o.bad, o.all = slowQueries(name, matchers, bound)
	return o
}

func objectives() []objective {
	const requests = `notifyd_http_requests_total{method="POST",route=~"/v1/(notifications|triggers).*"%s}`
	const call = "notifyd_acceptance_to_call_seconds"
	return []objective{
		{
			slo: "acceptance", alert: "NotifydAcceptanceBudgetBurn", promise: "99.95% of sending requests are not answered with 5xx", budget: "0.0005",
			bad:       fmt.Sprintf("(sum(rate("+requests+"[WINDOW])) or vector(0))", `,status=~"5.."`),
			all:       fmt.Sprintf("sum(rate("+requests+"[WINDOW]))", ""),
			dashboard: "service",
		},
		latencyObjective("urgent_call", "NotifydUrgentBudgetBurn", "99% of otp and alert reach the provider call within 1 s", "delivery", call, `category=~"otp|alert"`, "1"),
		latencyObjective("push_call", "NotifydPushBudgetBurn", "99% of transactional push reach the provider call within 5 s", "delivery", call, `lane="push",category="transactional"`, "5"),
		latencyObjective("sms_call", "NotifydSMSBudgetBurn", "99% of transactional SMS reach the provider call within 5 s", "delivery", call, `lane="sms",category="transactional"`, "5"),
		latencyObjective("email_call", "NotifydEmailBudgetBurn", "99% of transactional email reach the provider call within 2 min", "delivery", call, `lane="email",category="transactional"`, "120"),
		latencyObjective("timer_late", "NotifydTimerLatenessBudgetBurn", "99% of timers are published within 50 ms of their time", "timers", "notifyd_timer_late_seconds", "", "0.05"),
		latencyObjective("trigger_late", "NotifydTriggerLatenessBudgetBurn", "99% of triggers are called within 1 s of their time", "timers", "notifyd_trigger_late_seconds", "", "1"),
	}
}

var windows = []string{"5m", "30m", "1h", "2h", "6h", "1d", "3d"}

// objectiveRules returns the content of rules/objectives.yml. It has the share of bad events in
// seven windows. It also has alerts that fire if the error budget of 30 days is used up too fast.
// Each alert looks at a long window, which shows that the problem is large, and at a short window,
// which shows that the problem still exists.
func objectiveRules() []byte {
	var b strings.Builder
	out := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	out("# Written by dashboards/build: edit objectives.go there.\ngroups:\n")
	for _, o := range objectives() {
		out("  - name: notifyd-slo-%s\n    interval: 30s\n    rules:\n", strings.ReplaceAll(o.slo, "_", "-"))
		record := func(name, expr string) {
			out("      - record: %s\n        expr: %s\n        labels: {slo: %s}\n", name, quote(expr), o.slo)
		}
		record("notifyd:slo_budget", "vector("+o.budget+")")
		for _, w := range windows {
			record("notifyd:slo_errors:ratio_rate"+w, strings.ReplaceAll(o.bad+" / "+o.all, "WINDOW", w))
		}
		for _, w := range []string{"1h", "6h"} {
			record("notifyd:slo_events:increase"+w, strings.ReplaceAll(strings.ReplaceAll(o.all, "rate(", "increase("), "WINDOW", w))
		}
		out("%s", o.burnAlert("page", "1h", "5m", 14.4, "6h", "30m", 6, "1h"))
		out("%s", o.burnAlert("ticket", "1d", "2h", 3, "3d", "6h", 1, "6h"))
	}
	return []byte(b.String())
}

// burnAlert returns an alert with two pairs of windows. Each pair has a long and a short window.
// The alert fires if, in both windows of one pair, the share of bad events exceeds the limit of
// that pair, and if at least 20 events happened. The parameter events is the window in which the
// events are counted.
func (o *objective) burnAlert(severity, long1, short1 string, times1 float64, long2, short2 string, times2 float64, events string) string {
	sel := fmt.Sprintf("{slo=%q}", o.slo)
	over := func(window string, times float64) string {
		return fmt.Sprintf("notifyd:slo_errors:ratio_rate%s%s > %g * %s", window, sel, times, o.budget)
	}
	expr := fmt.Sprintf("((%s and %s) or (%s and %s)) and notifyd:slo_events:increase%s%s >= 20",
		over(long1, times1), over(short1, times1), over(long2, times2), over(short2, times2), events, sel)
	return fmt.Sprintf(`      - alert: %s
        expr: %s
        for: 1m
        labels: {severity: %s, slo: %s}
        annotations:
          summary: The error budget of %s burns too fast
          description: >-
            Promised: %s. Lately {{ $value | humanizePercentage }} were bad: %g times the budget's pace over %s, or %g times over %s.
          dashboard: notifyd-%s
          runbook_url: https://github.com/notifyd/notifyd/blob/main/dashboards/runbooks/%s.md
`, o.alert, quote(expr), severity, o.slo, o.slo, o.promise, times1, long1, times2, long2, o.dashboard, o.alert)
}

// quote returns s as a single-quoted YAML string.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
