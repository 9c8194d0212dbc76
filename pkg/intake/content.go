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

// needs are the variables that the texts of a request use, as the providers'
// clients read them: a receiver's own before the shared ones, and each a string,
// a number or a boolean. What only they would refuse is refused here, where the
// caller still hears of it: behind a 201 it would be a failure of the receiver.
type needs struct {
	names map[string]int // each name's place in the texts
	order []string
	// lack are the places of the names that the shared variables do not give as
	// text, first to last; bare says so of a receiver without variables of its own.
	lack []int
	bare reason

	given []uint64 // by place: the receiver, by count, whose own variables give it
	count uint64
}

// of reads the content of a request. A template is a provider's, which knows its
// variables.
func (n *needs) of(ch notify.Channel, c *notify.Content) {
	clear(n.names)
	n.order, n.lack, n.bare = n.order[:0], n.lack[:0], noReason
	if c.Template != "" {
		return
	}
	n.in(c.Body)
	if ch != notify.SMS {
		n.in(c.Title)
	}
	if ch == notify.Email {
		n.in(c.HTML)
	}
	if len(n.order) == 0 {
		return
	}
	n.given = append(n.given[:0], make([]uint64, len(n.order))...)
	n.count = 1
	bad := map[int]bool{}
	n.members(c.Variables, func(place int, isText bool) { bad[place] = !isText })
	for place := range n.order {
		if n.given[place] != n.count {
			n.lack = append(n.lack, place)
		}
	}
	if len(n.lack) > 0 {
		if n.bare = n.missing(n.lack[0]); bad[n.lack[0]] {
			n.bare = n.other(n.lack[0])
		}
	}
}

// mayNeed reports whether a text may use a variable.
func mayNeed(text string) bool { return strings.IndexByte(text, '{') >= 0 }

func (n *needs) in(text string) {
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

// members calls fn with the place of each member of object that the texts use,
// and marks those that are text. object is a checked JSON object, or nil.
func (n *needs) members(object []byte, fn func(place int, isText bool)) {
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
			n.given[place] = n.count
		}
		fn(place, isText)
		return nil
	})
}

// check says why a receiver with variables of its own, a checked JSON object or
// nil, is refused. It takes time in proportion to the object, however many names
// the texts have, unless it refuses.
func (n *needs) check(own []byte) reason {
	if len(n.order) == 0 || len(own) == 0 {
		return n.bare
	}
	n.count++
	bad, filled := -1, 0
	n.members(own, func(place int, isText bool) {
		switch _, lacks := slices.BinarySearch(n.lack, place); {
		case !isText && (bad < 0 || place < bad):
			bad = place
		case isText && lacks:
			filled++
		}
	})
	if bad >= 0 {
		return n.other(bad)
	}
	if filled == len(n.lack) {
		return noReason
	}
	for _, place := range n.lack {
		if n.given[place] != n.count {
			return n.missing(place)
		}
	}
	return noReason
}

func (n *needs) missing(place int) reason {
	return reason{"missing_variable", "variables." + n.order[place], "the text uses a variable that is not given"}
}

func (n *needs) other(place int) reason {
	return reason{"bad_variable", "variables." + n.order[place], "a variable of a text is a string, a number or a boolean"}
}
