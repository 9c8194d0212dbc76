package main

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/notifyd/notifyd/pkg/term"
)

// redact is a slog ReplaceAttr function. It replaces the values of the keys in term.SecretKeys. In all
// other values it masks texts that look like a secret or an address.
func redact(_ []string, a slog.Attr) slog.Attr {
	if term.SecretKeys[strings.ToLower(a.Key)] {
		return slog.String(a.Key, "[redacted]")
	}
	switch a.Value.Kind() {
	case slog.KindString:
		return slog.String(a.Key, term.Mask(a.Value.String()))
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			return slog.String(a.Key, term.Mask(err.Error()))
		}
		text := fmt.Sprintf("%s", a.Value.Any()) // bytes become text
		if masked := term.Mask(text); masked != text {
			return slog.String(a.Key, masked)
		}
	}
	return a
}
