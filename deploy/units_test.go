package deploy

import (
	"bufio"
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/app"
)

// What units may say; a key that systemd does not know it only warns of.
var unitKeys = map[string][]string{
	"Unit":    {"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec"},
	"Install": {"WantedBy"},
	"Service": {
		"Type", "ExecStart", "LoadCredential", "Environment", "Restart", "RestartSec", "TimeoutStopSec", "KillMode", "LimitNOFILE",
		"DynamicUser", "StateDirectory", "StateDirectoryMode", "UMask", "NoNewPrivileges", "CapabilityBoundingSet", "AmbientCapabilities",
		"ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "PrivateUsers", "ProtectClock", "ProtectControlGroups",
		"ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc",
		"RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "LockPersonality",
		"MemoryDenyWriteExecute", "RemoveIPC", "SystemCallArchitectures", "SystemCallFilter", "SystemCallErrorNumber",
	},
}

// What every unit must say, for it speaks to the network and needs no more.
var hardened = map[string]string{
	"DynamicUser": "yes", "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes",
	"PrivateDevices": "yes", "ProtectKernelTunables": "yes", "ProtectKernelModules": "yes", "ProtectControlGroups": "yes", "RestrictNamespaces": "yes",
	"RestrictSUIDSGID": "yes", "LockPersonality": "yes", "MemoryDenyWriteExecute": "yes", "SystemCallArchitectures": "native", "Restart": "always",
}

// unit reads a unit: section.key -> its values.
func unit(t *testing.T, name string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	section := ""
	lines := bufio.NewScanner(bytes.NewReader(read(t, name)))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
			continue
		case line[0] == '[':
			section = strings.Trim(line, "[]")
			if unitKeys[section] == nil {
				t.Errorf("%s:%d: section %q", name, n, section)
			}
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || !slices.Contains(unitKeys[section], key) {
			t.Errorf("%s:%d: %q is no key of %s", name, n, key, section)
		}
		out[section+"."+key] = append(out[section+"."+key], value)
	}
	must(t, lines.Err())
	return out
}

func TestUnits(t *testing.T) {
	t.Parallel()
	units, err := filepath.Glob("systemd/*.service")
	must(t, err)
	if len(units) != 2 {
		t.Fatalf("units %q", units)
	}
	for _, name := range units {
		u := unit(t, name)
		for key, want := range hardened {
			if got := u["Service."+key]; len(got) != 1 || got[0] != want {
				t.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
		if start := u["Service.ExecStart"]; len(start) == 1 {
			args := strings.Fields(start[0])
			checkCommand(t, name, args[0], args[1:])
			if strings.Contains(name, "@") != slices.Contains(args, "%i") || !slices.Contains(args, "${STATE_DIRECTORY}") || u["Service.StateDirectory"] == nil {
				t.Errorf("%s: starts %q", name, start[0])
			}
		} else {
			t.Errorf("%s: starts %q", name, start)
		}
		var credentials, environ []string
		for _, c := range u["Service.LoadCredential"] {
			id, file, ok := strings.Cut(c, ":")
			if !ok || !filepath.IsAbs(file) {
				t.Errorf("%s: credential %q", name, c)
			}
			credentials = append(credentials, id)
		}
		for _, e := range u["Service.Environment"] {
			key, value, _ := strings.Cut(e, "=")
			id, ok := strings.CutPrefix(value, "%d/")
			if !ok || !strings.HasPrefix(key, app.EnvPrefix) || !slices.Contains(credentials, id) {
				t.Errorf("%s: environment %q", name, e)
			}
			environ = append(environ, key+"=/run/credentials/"+id)
		}
		if len(environ) != len(credentials) {
			t.Errorf("%s: %d credentials, %d are used", name, len(credentials), len(environ))
		}
		content := []byte("{}")
		if strings.Contains(name, "@") {
			content = read(t, "compose/notifyd.yaml") // a configuration that has all servers
		}
		cfg := checkConfig(t, name, content, environ...)
		stop, err := time.ParseDuration(u["Service.TimeoutStopSec"][0])
		must(t, err)
		checkStop(t, name, &cfg, 0, stop)
	}
}

// TestProductionGuide: the guide's configuration is one that notifyd takes, each file it
// names is handed over by the unit, and every command and flag in it exists.
func TestProductionGuide(t *testing.T) {
	t.Parallel()
	const guide, folder = "../docs/production.md", "/run/credentials/notifyd.service/"
	text := string(read(t, guide))
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(text, -1)
	if len(blocks) != 1 {
		t.Fatalf("%d blocks of YAML", len(blocks))
	}
	cfg := checkConfig(t, guide, []byte(blocks[0][1]), "NOTIFYD__AUTH__HS256_FILE="+folder+"token-key")
	p := &cfg.Providers
	for _, file := range []string{p.APNs.KeyFile, p.FCM.Credentials, p.Twilio.AccountsFile, p.SendGrid.KeyFile, p.SendGrid.WebhookKey} {
		id, ok := strings.CutPrefix(file, folder)
		if !ok || !strings.Contains(text, "\nLoadCredential="+id+":/etc/notifyd/secrets/"+id+"\n") || !strings.Contains(text, "| `"+id+"` |") {
			t.Errorf("%s: the unit is not given %q", guide, file)
		}
	}
	commands := regexp.MustCompile("(?m)(?:^    |`|^ExecStart=/usr/bin/)((?:notifyd|notifyctl) [^`\n]+)").FindAllStringSubmatch(text, -1)
	if len(commands) < 15 {
		t.Errorf("only %d commands are found", len(commands))
	}
	for _, c := range commands {
		line, _, _ := strings.Cut(c[1], " >")
		args := slices.DeleteFunc(strings.Fields(line), func(a string) bool { return a == "prod" || a == strings.ToUpper(a) }) // names of its own
		checkCommand(t, guide, args[0], args[1:])
	}
}
