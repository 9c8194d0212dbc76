package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestCommitted compares the committed files with the output of the program.
func TestCommitted(t *testing.T) {
	t.Parallel()
	files, err := build()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(name)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what go run ./dashboards/build writes (%v)", name, err)
		}
	}
	there, err := filepath.Glob("../grafana/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range there {
		if _, ok := files["grafana/"+filepath.Base(file)]; !ok {
			t.Errorf("%s is not written by dashboards/build: remove it", file)
		}
	}
}

var metricName = regexp.MustCompile(`notifyd_[a-z_]+`)

// TestAlertsHavePanels checks that every metric in an alert's expression is on a panel.
func TestAlertsHavePanels(t *testing.T) {
	t.Parallel()
	files, err := build()
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for name, text := range files {
		if filepath.Ext(name) == ".json" {
			for _, m := range metricName.FindAllString(string(text), -1) {
				shown[m] = true
			}
		}
	}
	rules, err := os.ReadFile("../rules/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range metricName.FindAllString(string(rules), -1) {
		if !shown[m] {
			t.Errorf("an alert uses the metric %s, but no panel shows it", m)
		}
	}
}
