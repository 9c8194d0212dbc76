package term

import "testing"

func TestRedactTold(t *testing.T) {
	t.Parallel()
	f := func(in, want string) {
		t.Helper()
		if got, _ := RedactText(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	f(`password=abc next`, `password=[redacted] next`)
	f(`{"auth_token": "a b\"c", "n": 1}`, `{"auth_token": "[redacted]", "n": 1}`)
	f(`"said \"secret\": \"abc\" to"`, `"said \"secret\": \"[redacted]\" to"`)
	f(`client_secret: abc`, `client_secret: [redacted]`)
	f(`api.Authorization: "abc"`, `api.Authorization: "[redacted]"`)
	f(`token_url: "https://x"`, `token_url: "https://x"`)
	f(`auth.key_file: "/etc/key.pem"`, `auth.key_file: "/etc/key.pem"`)
	f(`token=""`, `token=""`)
	f(`token: [redacted]`, `token: [redacted]`)
	f(`call +15550001234 or https://u:p@h/x`, `call [phone] or https://[redacted]@h/x`)
	f("a\n-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----\nb", "a\n[key]\nb")
	f("-----BEGIN PRIVATE KEY-----\ncut off", "[key]")
	_, n := RedactText("a@b.co c@d.co password=x")
	if n["mail addresses"] != 2 || n["values named secret"] != 1 || len(n) != 2 {
		t.Errorf("counted %v", n)
	}
}
