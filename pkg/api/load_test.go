package api

import "testing"

// TestGrantCoversHosts: a host is named with its port, or for all ports. A Host header has no
// port where the scheme's own is used.
func TestGrantCoversHosts(t *testing.T) {
	t.Parallel()
	for granted, hosts := range map[string]map[string]bool{
		"staging.example:7420": {"staging.example:7420": true, "STAGING.example:7420": true, "staging.example": false, "staging.example:7421": false, "prod.example:7420": false},
		"staging.example":      {"staging.example:7420": true, "staging.example": true, "prod.example": false},
		"staging.example:443":  {"staging.example:443": true, "staging.example": true, "staging.example:80": false, "prod.example": false},
		"[::2]:80":             {"[::2]:80": true, "[::2]": true, "[::3]": false},
	} {
		g := LoadGrant{Hosts: []string{granted}}
		for host, want := range hosts {
			if g.Covers(host) != want {
				t.Errorf("a grant of %s covers %s: %v", granted, host, !want)
			}
		}
	}
}

// TestLoadHost: only a plain http or https URL names a host for load.
func TestLoadHost(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://Staging.example": "staging.example:443", "http://10.0.0.1:7420/": "10.0.0.1:7420", "http://[::1]/base": "[::1]:80",
		"ftp://x": "", "http://u@x": "", "http://x/?q": "", "http://x/#f": "", "x:1": "", "http://127.0.0.1:9,http://x": "",
	} {
		if got, err := LoadHost(url); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", url, got, err)
		}
	}
}
