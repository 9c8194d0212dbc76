package intake

import (
	"bytes"
	"fmt"
	"net/mail"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// Intake also checks rules of the providers, so that the caller gets an error and can correct the
// request. Without these checks the request would get a 201, and each receiver would fail later.

// checkNames returns an error if a name contains invisible characters or characters that control a
// terminal. Operators and callers see these names.
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

// checkSender checks content.from. For sms it must be a sender that Twilio accepts; for email it
// must be valid as the From of a mail.
func checkSender(ch notify.Channel, from string) error {
	switch ch {
	case notify.SMS:
		if !isSMSSender(from) {
			return invalid("bad_from", "content.from", "must be a phone number in E.164 form, a short code of 3 to 8 digits, a name of at most 11 letters, digits, spaces and +-_& with at least one letter, or the id of a Twilio messaging service (MG and 32 hexadecimal digits)")
		}
	case notify.Email:
		a, err := mail.ParseAddress(from)
		if err != nil || users.ValidateAddress(notify.Email, a.Address) != nil || notify.HasControl(a.Name) {
			return invalid("bad_from", "content.from", "must be an e-mail address, or a name followed by an e-mail address in angle brackets")
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

// checkData checks the names in content.data, a valid JSON object. Each member is added to the
// payload of APNs and to the data of FCM, and some names have a special meaning there.
func checkData(data []byte) error {
	return eachMemberOf(data, func(name string, value []byte) error {
		switch {
		case name == "aps":
			return checkAPS(value)
		case name == "ntf":
			return reservedName("ntf", "notifyd sets it to the id of the notification")
		case name == "from", name == "message_type", strings.HasPrefix(name, "google."), strings.HasPrefix(name, "gcm."):
			return reservedName(name, `FCM refuses the names "from" and "message_type", and names that begin with "google." or "gcm."`)
		}
		return nil
	})
}

// checkAPS checks content.data.aps. Its members (sound, badge, thread-id) are added to the members
// that are made from title and body.
func checkAPS(aps []byte) error {
	if aps[0] != '{' {
		return invalid("wrong_type", "content.data.aps", "must be an object, because its members are added to the aps object of APNs")
	}
	return eachMemberOf(aps, func(name string, _ []byte) error {
		if name == "alert" || name == "content-available" {
			return reservedName("aps."+name, "notifyd makes it from title and body")
		}
		return nil
	})
}

func reservedName(name, why string) error {
	return invalid("reserved_name", "content.data."+notify.EscapeControls(name[:min(len(name), 64)]), "the name is reserved: "+why)
}

// eachMemberOf calls fn with the name and value of each member of a valid JSON object. It stops at
// the first error of fn.
func eachMemberOf(object []byte, fn func(name string, value []byte) error) error {
	for i := skipSpace(object, bytes.IndexByte(object, '{')+1); object[i] == '"'; {
		name, end, err := stringAt(object, i)
		if err != nil {
			return fmt.Errorf("intake: a name in a JSON object that was checked before is not valid: %w", err)
		}
		at := skipSpace(object, skipSpace(object, end)+1) // after the colon
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

// textVariables are the variables that the texts of a request use. Intake resolves them in the same
// way as package provider does later. A receiver's own variables win over the shared variables. Each
// value must be a string, a number or a boolean. Intake refuses a receiver if a value is missing,
// so that the caller can correct the request. Without this check the request would get a 201, and
// the receiver would fail later.
type textVariables struct {
	names map[string]int // index of each name in the slice order
	order []string
	// missingShared holds, in ascending order, the indexes of the names for which the shared
	// variables contain no text value. If there are such names, a receiver without variables of
	// its own is refused with the reason bareReason.
	missingShared []int
	bareReason    reason

	// givenBy[i] is the number of the latest receiver whose own variables contained a text value
	// for the name order[i]. The receivers are numbered by receiverCount.
	givenBy       []uint64
	receiverCount uint64
}

// readTexts collects the variables of the texts in c. If c has a template, it collects nothing,
// because only the provider knows the variables of the template.
func (n *textVariables) readTexts(ch notify.Channel, c *notify.Content) {
	clear(n.names)
	n.order, n.missingShared, n.bareReason = n.order[:0], n.missingShared[:0], noReason
	if c.Template != "" {
		return
	}
	n.addPlaceholders(c.Body)
	if ch != notify.SMS {
		n.addPlaceholders(c.Title)
	}
	if ch == notify.Email {
		n.addPlaceholders(c.HTML)
	}
	if len(n.order) == 0 {
		return
	}
	n.givenBy = append(n.givenBy[:0], make([]uint64, len(n.order))...)
	n.receiverCount = 1
	bad := map[int]bool{}
	n.eachUsedMember(c.Variables, func(place int, isText bool) { bad[place] = !isText })
	for place := range n.order {
		if n.givenBy[place] != n.receiverCount {
			n.missingShared = append(n.missingShared, place)
		}
	}
	if len(n.missingShared) > 0 {
		if n.bareReason = n.missingVariable(n.missingShared[0]); bad[n.missingShared[0]] {
			n.bareReason = n.badVariable(n.missingShared[0])
		}
	}
}

// mayNeed reports whether a text may use variables. It only looks for a brace, so the result can
// be true for a text without variables. But if it is false, the text certainly uses none.
func mayNeed(text string) bool { return strings.IndexByte(text, '{') >= 0 }

func (n *textVariables) addPlaceholders(text string) {
	for at := 0; ; {
		_, end, name, ok := notify.NextPlaceholder(text, at)
		if !ok {
			return
		}
		at = end
		if _, ok := n.names[name]; ok {
			continue
		}
		if n.names == nil {
			n.names = map[string]int{}
		}
		n.names[name] = len(n.order)
		n.order = append(n.order, name)
	}
}

// eachUsedMember calls fn for each member of the object whose name the texts use, with the index
// of the name in n.order. If the value is text, eachUsedMember also records this in n.givenBy.
// The object is JSON that was checked before, or nil.
func (n *textVariables) eachUsedMember(object []byte, fn func(place int, isText bool)) {
	if len(object) == 0 {
		return
	}
	_ = eachMemberOf(object, func(name string, value []byte) error {
		place, ok := n.names[name]
		if !ok {
			return nil
		}
		isText := value[0] != '{' && value[0] != '[' && value[0] != 'n'
		if isText {
			n.givenBy[place] = n.receiverCount
		}
		fn(place, isText)
		return nil
	})
}

// check returns the reason to refuse a receiver, or noReason. The parameter own contains the
// receiver's own variables: a JSON object that was checked before, or nil. For an accepted
// receiver the time that check takes grows with the size of these variables, not with the number
// of names in the texts.
func (n *textVariables) check(own []byte) reason {
	if len(n.order) == 0 || len(own) == 0 {
		return n.bareReason
	}
	n.receiverCount++
	bad, filled := -1, 0
	n.eachUsedMember(own, func(place int, isText bool) {
		switch _, lacks := slices.BinarySearch(n.missingShared, place); {
		case !isText && (bad < 0 || place < bad):
			bad = place
		case isText && lacks:
			filled++
		}
	})
	if bad >= 0 {
		return n.badVariable(bad)
	}
	if filled == len(n.missingShared) {
		return noReason
	}
	for _, place := range n.missingShared {
		if n.givenBy[place] != n.receiverCount {
			return n.missingVariable(place)
		}
	}
	return noReason
}

func (n *textVariables) missingVariable(place int) reason {
	return reason{"missing_variable", "variables." + n.order[place], "the text uses a variable that is not given"}
}

func (n *textVariables) badVariable(place int) reason {
	return reason{"bad_variable", "variables." + n.order[place], "must be a string, a number or a boolean, because a text uses it"}
}
