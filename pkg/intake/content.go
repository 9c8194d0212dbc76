package intake

import (
	"bytes"
	"fmt"
	"net/mail"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// What only a provider would refuse is checked here, where the caller still
// hears of it: behind a 201 it would be a failure of each receiver.

// checkNames refuses what steers a terminal, or is not seen, in the names that
// operators and callers are shown.
func checkNames(c *notify.Content) error {
	for _, f := range [...]struct{ name, value string }{
		{"template", c.Template}, {"collapse_key", c.CollapseKey}, {"from", c.From},
	} {
		if notify.HasHidden(f.value) {
			return invalid("control_character", "content."+f.name, notify.RuleHidden)
		}
	}
	return nil
}

// checkSender checks content.from: as Twilio takes it for sms, as a mail's From
// for email.
func checkSender(ch notify.Channel, from string) error {
	switch ch {
	case notify.SMS:
		if !isSMSSender(from) {
			return invalid("bad_from", "content.from", "a number in E.164, a short code of 3 to 8 digits, a name of at most 11 letters, digits, spaces and +-_&, one of them a letter, or a messaging service (MG and 32 hexadecimal digits)")
		}
	case notify.Email:
		a, err := mail.ParseAddress(from)
		if err != nil || users.ValidateAddress(notify.Email, a.Address) != nil || notify.HasControl(a.Name) {
			return invalid("bad_from", "content.from", "an e-mail address, or a name and an e-mail address in angle brackets")
		}
	}
	return nil
}

func isSMSSender(from string) bool {
	digits, letters := 0, 0
	for i := range len(from) {
		switch c := from[i]; {
		case '0' <= c && c <= '9':
			digits++
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
			letters++
		case c != ' ' && c != '+' && c != '-' && c != '_' && c != '&':
			return false
		}
	}
	switch {
	case users.ValidateAddress(notify.SMS, from) == nil:
		return true
	case digits == len(from):
		return digits >= 3 && digits <= 8
	case len(from) == 34 && strings.HasPrefix(from, "MG"):
		return strings.Trim(from[2:], "0123456789abcdefABCDEF") == ""
	}
	return letters > 0 && len(from) <= 11 && strings.TrimSpace(from) == from
}

// checkData checks the names in content.data, a valid JSON object: each becomes
// a member of APNs' payload and of FCM's data, and some mean something there.
func checkData(data []byte) error {
	return eachMemberOf(data, func(name string, value []byte) error {
		switch {
		case name == "aps":
			return checkAPS(value)
		case name == "ntf":
			return reserved("ntf", "the notification's id stands there")
		case name == "from", name == "message_type", strings.HasPrefix(name, "google."), strings.HasPrefix(name, "gcm."):
			return reserved(name, `FCM refuses from, message_type and what begins with "google." or "gcm."`)
		}
		return nil
	})
}

// checkAPS checks content.data.aps, whose members join those that are made of
// title and body (sound, badge, thread-id).
func checkAPS(aps []byte) error {
	if aps[0] != '{' {
		return invalid("wrong_type", "content.data.aps", "must be an object: it joins APNs' own")
	}
	return eachMemberOf(aps, func(name string, _ []byte) error {
		if name == "alert" || name == "content-available" {
			return reserved("aps."+name, "title and body make it")
		}
		return nil
	})
}

func reserved(name, why string) error {
	return invalid("reserved_name", "content.data."+notify.EscapeControls(name[:min(len(name), 64)]), "the name is reserved: "+why)
}

// eachMemberOf calls fn with the name and value of each member of a valid JSON
// object.
func eachMemberOf(object []byte, fn func(name string, value []byte) error) error {
	for i := skipSpace(object, bytes.IndexByte(object, '{')+1); object[i] == '"'; {
		name, end, err := stringAt(object, i)
		if err != nil {
			return fmt.Errorf("intake: a checked object: %w", err)
		}
		at := skipSpace(object, skipSpace(object, end)+1) // behind the colon
		end, _ = skipValue(object, at)
		if err := fn(alias(name), object[at:end]); err != nil {
			return err
		}
		if i = skipSpace(object, end); object[i] == ',' {
			i = skipSpace(object, i+1)
		}
	}
	return nil
}
