package main

import (
	"log/slog"
	"regexp"
)

// What must never stand in a log, wherever it comes from: an error of a library
// may quote a URL, a header or an address.
var (
	reBearer = regexp.MustCompile(`(?i)(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`)
	reJWT    = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`)
	reKey    = regexp.MustCompile(`SG\.[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]+)?`)
	rePhone  = regexp.MustCompile(`\+[1-9][0-9]{6,14}\b`)
	reEmail  = regexp.MustCompile(`[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}`)
	reDevice = regexp.MustCompile(`\b[0-9a-fA-F]{64}\b`)
)

var secretKeys = map[string]bool{
	"token": true, "authorization": true, "password": true, "secret": true, "address": true,
	"phone": true, "email": true, "body": true, "title": true, "variables": true,
}

// redact is a slog ReplaceAttr: it drops values under telling keys and masks
// what looks like a secret or an address in all others.
func redact(_ []string, a slog.Attr) slog.Attr {
	if secretKeys[a.Key] {
		return slog.String(a.Key, "[redacted]")
	}
	switch a.Value.Kind() {
	case slog.KindString:
		return slog.String(a.Key, mask(a.Value.String()))
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			return slog.String(a.Key, mask(err.Error()))
		}
	}
	return a
}

func mask(s string) string {
	s = reBearer.ReplaceAllString(s, "$1 [redacted]")
	s = reJWT.ReplaceAllString(s, "[token]")
	s = reKey.ReplaceAllString(s, "[key]")
	s = reDevice.ReplaceAllString(s, "[device]")
	s = reEmail.ReplaceAllString(s, "[email]")
	return rePhone.ReplaceAllString(s, "[phone]")
}
