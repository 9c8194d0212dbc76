package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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
	accounts, err := json.Marshal(s.Credentials.Twilio)
	if err != nil {
		return nil, s.URLs, "", err
	}
	files := map[string][]byte{
		"twilio.json": accounts, "sendgrid.key": []byte(s.Credentials.SendGrid.APIKey),
		"sendgrid-webhook.key": []byte(s.Credentials.SendGrid.WebhookPublicKey),
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(secrets, name), data, 0o600); err != nil {
			return nil, s.URLs, "", err
		}
	}
	key := filepath.Join(dir, "key.pem")
	if _, err := os.Stat(key); errors.Is(err, os.ErrNotExist) {
		if err := makeKey(key); err != nil {
			return nil, s.URLs, "", err
		}
	}
	return map[string]any{
		"data_dir":   secrets,
		"api.listen": ports.api, "api.admin": ports.admin, "log.listen": ports.kafka,
		"auth.key_file":                       key,
		"providers.ca_file":                   filepath.Join(simDir, "ca.pem"),
		"providers.apns.url":                  s.URLs.APNs,
		"providers.apns.key_file":             filepath.Join(simDir, "apns.p8"),
		"providers.apns.key_id":               s.Credentials.APNs.KeyID,
		"providers.apns.team_id":              s.Credentials.APNs.TeamID,
		"providers.apns.topic":                s.Credentials.APNs.Topic,
		"providers.fcm.url":                   s.URLs.FCM,
		"providers.fcm.token_url":             s.URLs.FCMToken,
		"providers.fcm.credentials_file":      filepath.Join(simDir, "fcm-service-account.json"),
		"providers.twilio.url":                s.URLs.Twilio,
		"providers.twilio.accounts_file":      filepath.Join(secrets, "twilio.json"),
		"providers.sendgrid.url":              s.URLs.SendGrid,
		"providers.sendgrid.key_file":         filepath.Join(secrets, "sendgrid.key"),
		"providers.sendgrid.webhook_key_file": filepath.Join(secrets, "sendgrid-webhook.key"),
		"providers.sendgrid.from":             "notifyd <no-reply@example.com>",
		"providers.sendgrid.pools":            s.Credentials.SendGrid.Pools,
		"providers.sendgrid.rate":             20000,
		"triggers.plain":                      true,
		"triggers.allow":                      []string{"127.0.0.0/8", "::1/128"},
		"triggers.ports":                      []int{0},
		"logging.level":                       "warn",
		"logging.format":                      "text",
	}, s.URLs, s.Credentials.CallbackSecret, nil
}
