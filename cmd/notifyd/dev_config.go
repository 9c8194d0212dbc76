package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// sharedConfigFile is a file with settings for other processes that use the same servers as this
// process (engines: distributed). Such a process is started with notifyd serve --config ENGINES
// --config FILE.
const sharedConfigFile = "beside.yaml"

// writeSharedConfig writes the settings that other processes share. It writes all settings in extra
// except the addresses, the data folder and the logging of this process.
func writeSharedConfig(name string, extra map[string]any, apiURL string) error {
	out := map[string]any{"api.public_url": apiURL}
	for key, value := range extra {
		if key != "data_dir" && key != "log.listen" && !strings.HasPrefix(key, "api.") && !strings.HasPrefix(key, "logging.") {
			out[key] = value
		}
	}
	b, err := json.MarshalIndent(out, "", "  ") // JSON is also valid YAML
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o600)
}

// devConfig returns the settings of a dev server, which make the providers use the simulators. It reads
// the simulators' addresses and credentials from simDir. If there is no signing key, devConfig makes a
// new key. The result secret is the secret with which callbacks are signed.
func devConfig(dir, simDir string, ports devAddrs) (_ map[string]any, urls simulator.URLs, secret string, err error) {
	var s struct {
		URLs        simulator.URLs        `json:"urls"`
		Credentials simulator.Credentials `json:"credentials"`
	}
	b, err := os.ReadFile(filepath.Join(simDir, "simulator.json"))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return nil, s.URLs, "", fmt.Errorf("the addresses of the simulators cannot be read: %w", err)
	}
	secrets := filepath.Join(dir, "data")
	if err := os.MkdirAll(secrets, 0o700); err != nil {
		return nil, s.URLs, "", err
	}
	set, err := app.SimulatedProviders(simDir, secrets, s.URLs, s.Credentials)
	if err != nil {
		return nil, s.URLs, "", err
	}
	key := filepath.Join(dir, "key.pem")
	if _, err := os.Stat(key); errors.Is(err, os.ErrNotExist) {
		if err := writeSigningKey(key); err != nil {
			return nil, s.URLs, "", err
		}
	}
	maps.Copy(set, map[string]any{
		"data_dir": secrets, "auth.key_file": key,
		"api.listen": ports.api, "api.admin": ports.admin, "log.listen": ports.kafka,
		"logging.level": "warn", "logging.format": "text",
	})
	return set, s.URLs, s.Credentials.CallbackSecret, nil
}
