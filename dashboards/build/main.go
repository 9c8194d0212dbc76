// Command build writes the dashboards of ../grafana and the rules of the
// objectives in ../rules/objectives.yml. Run it from the root of the repository:
//
//	go run ./dashboards/build
//
// The written files are committed. A test compares them with the output of this program.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	files, err := build()
	if err == nil {
		for name, data := range files {
			if err = os.WriteFile(filepath.Join("dashboards", filepath.FromSlash(name)), data, 0o644); err != nil { //nolint:gosec // committed, for all to read
				break
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// build returns every file, by its path below dashboards.
func build() (map[string][]byte, error) {
	files := map[string][]byte{"rules/objectives.yml": objectiveRules()}
	for _, d := range []dashboard{service(), delivery(), timers(), engines(), load()} {
		data, err := d.json()
		if err != nil {
			return nil, err
		}
		files["grafana/"+d.file+".json"] = data
	}
	return files, nil
}
