package term

import (
	"regexp"
	"strings"
)

// redactions are the patterns of secrets and addresses. A text that matches must never appear in a
// log or in a debug bundle. Such texts come from errors of libraries, which may quote a URL, a
// header or an address.
var redactions = []struct {
	re   *regexp.Regexp
	with string
	name string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*(?:PRIVATE KEY|CERTIFICATE)-----.*?(?:-----END [A-Z ]*-----|\z)`), "[key]", "keys"},
	{regexp.MustCompile(`://[^/\s"'@]+@`), "://[redacted]@", "credentials in URLs"},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`), "$1 [redacted]", "credentials in headers"},
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`), "[token]", "tokens"},
	{regexp.MustCompile(`\bwhsec_[A-Za-z0-9+/=_-]{8,}`), "[secret]", "signing secrets"},
	{regexp.MustCompile(`SG\.[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]+)?`), "[key]", "provider keys"},
	{regexp.MustCompile(`\b[0-9a-fA-F]{64}\b|\bfcm:[A-Za-z0-9_:.-]+|\b[A-Za-z0-9_-]+:APA91[A-Za-z0-9_-]+`), "[device]", "device tokens"},
	{regexp.MustCompile(`[A-Za-z0-9._%+-]+(@|%40)[A-Za-z0-9.-]+\.[A-Za-z]{2,}`), "[email]", "mail addresses"},
	{regexp.MustCompile(`(?i)(\+|%2B)[1-9][0-9]{6,14}\b`), "[phone]", "phone numbers"},
}

// reNamedSecret matches a value after a name that means a secret: password=..., "token": "...". It
// also finds such a value in JSON that is itself the text of a JSON string.
var reNamedSecret = regexp.MustCompile(`(?i)(\b(?:[a-z0-9_.-]*[_.-])?(?:token|secret|password|passwd|authorization|api_key|apikey|private_key)\\*"?\s*[:=]\s*)(\\+"[^"\\]*\\+"|"(?:[^"\\]|\\.)*"|[^\s",}\]\\]+)`)

// SecretKeys are names in lower case. The logs never show the value of an attribute with such a
// name.
var SecretKeys = map[string]bool{
	"token": true, "authorization": true, "password": true, "secret": true, "address": true,
	"phone": true, "email": true, "body": true, "title": true, "variables": true,
}

// Mask replaces each text that looks like a secret or an address.
func Mask(s string) string {
	s, _ = Redact(s)
	return s
}

// Redact is like Mask. It also counts the replaced texts by kind, such as "tokens".
func Redact(s string) (masked string, counts map[string]int) {
	counts = map[string]int{}
	for _, r := range redactions {
		if n := len(r.re.FindAllStringIndex(s, -1)); n > 0 {
			counts[r.name] += n
			s = r.re.ReplaceAllString(s, r.with)
		}
	}
	return s, counts
}

// RedactText is like Redact. It also replaces each value that follows a name such as password, even
// if the value does not look like a secret. So it may replace a harmless number or file name. Use
// it for texts that people read.
func RedactText(s string) (masked string, counts map[string]int) {
	s, counts = Redact(s)
	s = reNamedSecret.ReplaceAllStringFunc(s, func(m string) string {
		at := reNamedSecret.FindStringSubmatchIndex(m)
		value := strings.Trim(m[at[4]:at[5]], `"\`)
		if strings.HasPrefix(value, "[") || value == "" {
			return m // the value is already masked, is a list, or is empty
		}
		counts["values named secret"]++
		return m[:at[4]] + strings.Replace(m[at[4]:at[5]], value, "[redacted]", 1)
	})
	return s, counts
}
