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

// besideFile is what other processes are given, where the engines are servers, to
// work beside this one: notifyd serve --config ENGINES --config FILE.
const besideFile = "beside.yaml"

// writeBeside writes the part of the configuration that other processes share.
func writeBeside(name string, extra map[string]any, apiURL string) error {
	out := map[string]any{"api.public_url": apiURL}
	for key, value := range extra {
		if key != "data_dir" && key != "log.listen" && !strings.HasPrefix(key, "api.") && !strings.HasPrefix(key, "logging.") {
			out[key] = value
		}
	}
	b, err := json.MarshalIndent(out, "", "  ") // which is YAML too
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o600)
}

// devConfig points the providers at the simulators, by the files they keep.
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
		return nil, s.URLs, "", fmt.Errorf("simulators: %w", err)
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
		if err := makeKey(key); err != nil {
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
