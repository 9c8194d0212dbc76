// Package dashboards embeds the Grafana dashboards, the Prometheus rules and the runbooks of
// their alerts in the program. README.md in this folder says how they are made and used.
package dashboards

import (
	"embed"
	"io/fs"
)

// files are grafana/*.json, rules/*.yml and runbooks/*.md.
//
//go:embed grafana/*.json rules/*.yml runbooks/*.md
var files embed.FS

// Files returns the embedded folders grafana, rules and runbooks.
func Files() fs.FS { return files }

// Runbooks is the URL, with a final slash, at which the rules expect the runbooks. An operator who
// publishes the runbooks elsewhere replaces this URL (notifyctl dashboards export --runbooks).
const Runbooks = "https://github.com/notifyd/notifyd/blob/main/dashboards/runbooks/"
