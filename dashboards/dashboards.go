// Package dashboards carries the Grafana dashboards, the Prometheus rules and the
// runbooks of their alerts inside the program. Where the files come from and how
// to use them is in README.md beside it.
package dashboards

import (
	"embed"
	"io/fs"
)

// files are grafana/*.json, rules/*.yml and runbooks/*.md.
//
//go:embed grafana/*.json rules/*.yml runbooks/*.md
var files embed.FS

// Files returns them; it does not fail.
func Files() fs.FS { return files }

// Runbooks is where the rules expect the folder of runbooks, with a slash at the
// end. Who publishes them elsewhere replaces it.
const Runbooks = "https://github.com/notifyd/notifyd/blob/main/dashboards/runbooks/"
