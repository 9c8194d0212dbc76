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

// The content is checked here for what only a provider would refuse, while the caller can still
// correct it. After a 201 it would become a failure of each receiver.

// checkNames refuses invisible characters and characters that control a terminal in the names that
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

// checkSender checks content.from: for sms as Twilio accepts it, for email as the From of a mail.
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

// checkData checks the names in content.data, a valid JSON object. Each becomes a member of APNs'
// payload and of FCM's data, where some names have a meaning.
func checkData(data []byte) error {
	return eachMemberOf(data, func(name string, value []byte) error {
		switch {
		case name == "aps":
			return checkAPS(value)
		case name == "ntf":
			return reservedName("ntf", "it holds the notification's id")
		case name == "from", name == "message_type", strings.HasPrefix(name, "google."), strings.HasPrefix(name, "gcm."):
			return reservedName(name, `FCM refuses from, message_type and names that begin with "google." or "gcm."`)
		}
		return nil
	})
}

// checkAPS checks content.data.aps. Its members are added to those made from title and body (sound,
// badge, thread-id).
func checkAPS(aps []byte) error {
	if aps[0] != '{' {
		return invalid("wrong_type", "content.data.aps", "must be an object: its members are added to APNs' aps object")
	}
	return eachMemberOf(aps, func(name string, _ []byte) error {
		if name == "alert" || name == "content-available" {
			return reservedName("aps."+name, "it is made from title and body")
		}
		return nil
	})
}

func reservedName(name, why string) error {
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

// textVariables are the variables that the texts of a request use, as the providers' clients read
// them: a receiver's own variables come before the shared ones, and each must be a string, a number
// or a boolean. A missing one is refused here, while the caller can still correct it. After a 201
// it would become a failure of the receiver.
type textVariables struct {
	names map[string]int // each name's index in order
	order []string
	// missingShared are the indexes of the names that the shared variables do not give as text,
	// ascending. bareReason is the refusal of a receiver without variables of its own.
	missingShared []int
	bareReason    reason

	givenBy       []uint64 // by index: the receiverCount at which a receiver's own variables gave the name
	receiverCount uint64
}

// readTexts reads the content of a request. It ignores a template, whose variables only the
// provider knows.
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

// mayNeed reports whether a text can use a variable at all.
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

// eachUsedMember calls fn with the index of each member of object that the texts use, and marks the
// members that are text. object is a checked JSON object, or nil.
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

// check returns why a receiver with these variables of its own, a checked JSON object or nil, is
// refused. Unless it refuses, its time grows with the object and not with the number of names in
// the texts.
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
	return reason{"bad_variable", "variables." + n.order[place], "a variable of a text is a string, a number or a boolean"}
}
