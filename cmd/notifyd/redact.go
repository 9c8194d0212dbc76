package main

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
)

// What must never stand in a log, wherever it comes from: an error of a library
// may quote a URL, a header or an address.
var (
	reBearer = regexp.MustCompile(`(?i)(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`)
	reJWT    = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`)
	reKey    = regexp.MustCompile(`SG\.[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]+)?`)
	rePhone  = regexp.MustCompile(`(?i)(\+|%2B)[1-9][0-9]{6,14}\b`)
	reEmail  = regexp.MustCompile(`[A-Za-z0-9._%+-]+(@|%40)[A-Za-z0-9.-]+\.[A-Za-z]{2,}`)
	reDevice = regexp.MustCompile(`\b[0-9a-fA-F]{64}\b|\bfcm:[A-Za-z0-9_:.-]+|\b[A-Za-z0-9_-]+:APA91[A-Za-z0-9_-]+`)
)

var secretKeys = map[string]bool{
	"token": true, "authorization": true, "password": true, "secret": true, "address": true,
	"phone": true, "email": true, "body": true, "title": true, "variables": true,
}

// redact is a slog ReplaceAttr: it drops values under telling keys and masks
// what looks like a secret or an address in all others.
func redact(_ []string, a slog.Attr) slog.Attr {
	if secretKeys[strings.ToLower(a.Key)] {
		return slog.String(a.Key, "[redacted]")
	}
	switch a.Value.Kind() {
	case slog.KindString:
		return slog.String(a.Key, mask(a.Value.String()))
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			return slog.String(a.Key, mask(err.Error()))
		}
		text := fmt.Sprintf("%s", a.Value.Any()) // bytes as text
		if masked := mask(text); masked != text {
			return slog.String(a.Key, masked)
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
