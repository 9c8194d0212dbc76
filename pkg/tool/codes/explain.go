// Package codes is the catalogue of every code that notifyd and notifyctl print: error codes,
// states, classes, verdicts of load runs and exit codes. The data is in catalogue.txt. A test
// searches the sources. It fails if a code in the sources is not in the catalogue, or if a code in
// the catalogue is not in the sources.
package codes

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Entry explains one code.
type Entry struct {
	Code    string `json:"code"` // for example "bad_json"; "http_<status>" stands for many codes
	Kind    string `json:"kind"` // one of Kinds
	Meaning string `json:"meaning"`
	Do      string `json:"do"`    // what the reader of the code should do
	Retry   string `json:"retry"` // one of Retries
	Where   string `json:"where"` // where it is printed
}

// Kinds of codes.
var Kinds = []string{"error", "state", "class", "verdict", "exit"}

// Retries contains the values of Entry.Retry, which says whether the same request should be tried
// again. "no": a retry does not help. "yes": a retry helps. "after": a retry helps after the action
// in the field Do was done. "itself": notifyd retries by itself.
var Retries = []string{"no", "yes", "after", "itself"}

//go:embed catalogue.txt
var text string

// All returns the catalogue in the order of catalogue.txt.
var All = sync.OnceValue(func() []Entry {
	list, err := parse(text)
	if err != nil {
		panic(err) // the built-in text is wrong: the tests would have found it
	}
	return list
})

// parse parses the format of catalogue.txt. There are headings of the form
//
//	== kind | where | retry | what to do
//
// Each heading is followed by lines of "code | meaning". A line may have two more fields, "what to
// do" and "retry", which replace the values of the heading for this line.
func parse(text string) (list []Entry, err error) {
	var base Entry
	for n, line := range strings.Split(text, "\n") {
		bad := func(why string) error { return fmt.Errorf("line %d: %s: %s", n+1, why, line) }
		if line == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "== "); ok {
			f := strings.Split(rest, " | ")
			if len(f) != 4 || !slices.Contains(Kinds, f[0]) || !slices.Contains(Retries, f[2]) {
				return nil, bad("a heading must have a kind, a place, a retry value and what to do")
			}
			base = Entry{Kind: f[0], Where: f[1], Retry: f[2], Do: f[3]}
			continue
		}
		e, f := base, strings.Split(line, " | ")
		switch len(f) {
		case 4:
			e.Retry = f[3]
			fallthrough
		case 3:
			e.Do = f[2]
			fallthrough
		case 2:
			e.Code, e.Meaning = f[0], f[1]
		default:
			return nil, bad("a line must have a code and a meaning, and may have what to do and a retry value")
		}
		if e.Kind == "" || e.Code == "" || e.Meaning == "" || e.Do == "" || !slices.Contains(Retries, e.Retry) {
			return nil, bad("a field is empty, or the retry value is unknown")
		}
		list = append(list, e)
	}
	return list, nil
}

// Find returns the entries of a code. Several entries may have exactly this code. If no entry has
// it, Find returns the entry of the family to which the code belongs, such as http_<status>. The
// code may begin with urn:notifyd:, as in problem types.
func Find(code string) (found []Entry) {
	code = strings.TrimPrefix(strings.TrimSpace(code), "urn:notifyd:")
	for _, e := range All() {
		if e.Code == code {
			found = append(found, e)
		}
	}
	for _, e := range All() {
		if len(found) == 0 && e.isFamilyOf(code) {
			return []Entry{e}
		}
	}
	return found
}

// hole matches the placeholder <...> in a code.
var hole = regexp.MustCompile(`<[a-z]+>`)

// isFamilyOf reports whether the entry is a family of codes that contains code. For example, the
// family http_<status> contains http_503.
func (e *Entry) isFamilyOf(code string) bool {
	if !hole.MatchString(e.Code) {
		return false
	}
	parts := hole.Split(e.Code, -1)
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(`^` + strings.Join(parts, `[a-z0-9]+`) + `$`).MatchString(code)
}

// Similar returns at most three codes that the user may have meant by a mistyped code. These are
// the codes from which it differs by the fewest typing errors. The function distance counts the
// errors.
func Similar(code string, distance func(a, b string) int) (names []string) {
	code = strings.TrimSpace(code)
	type near struct {
		name string
		far  int
	}
	var all []near
	most := min(3, (len(code)+1)/3)
	for _, e := range All() {
		d := distance(strings.ToLower(e.Code), strings.ToLower(code))
		if len(code) > 3 && strings.Contains(e.Code, strings.ToLower(code)) {
			d = min(d, most)
		}
		if d <= most && !slices.ContainsFunc(all, func(n near) bool { return n.name == e.Code }) {
			all = append(all, near{e.Code, d})
		}
	}
	slices.SortStableFunc(all, func(a, b near) int { return a.far - b.far })
	for _, n := range all[:min(3, len(all))] {
		if n.far == all[0].far {
			names = append(names, n.name)
		}
	}
	return names
}

// retryWords contains the texts for the values of Retries.
var retryWords = map[string]string{
	"no": "no", "yes": "yes, the same again", "after": "after you have done this", "itself": "notifyd does it by itself",
}

// RetryWords returns the text for the entry's Retry.
func (e *Entry) RetryWords() string { return retryWords[e.Retry] }
