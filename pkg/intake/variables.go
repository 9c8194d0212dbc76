package intake

import (
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
)

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
