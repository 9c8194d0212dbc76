// Package codes is the catalogue of every code that notifyd and notifyctl
// print: error codes, states, classes, verdicts of load runs and exit codes. The data is
// catalogue.txt; a test walks the sources and fails when one is missing from
// it, or is in it and nowhere else.
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
	Code    string `json:"code"` // "bad_json"; "http_<status>" stands for many
	Kind    string `json:"kind"` // one of Kinds
	Meaning string `json:"meaning"`
	Do      string `json:"do"`    // what whoever reads the code should do
	Retry   string `json:"retry"` // one of Retries
	Where   string `json:"where"` // where it is printed
}

// Kinds of codes.
var Kinds = []string{"error", "state", "class", "verdict", "exit"}

// Retries says whether trying again helps, with the same request: no; yes;
// after what Do says was done; or it happens by itself.
var Retries = []string{"no", "yes", "after", "itself"}

//go:embed catalogue.txt
var text string

// All lists the catalogue in its order.
var All = sync.OnceValue(func() []Entry {
	list, err := parse(text)
	if err != nil {
		panic(err) // of the text built in: no test would pass
	}
	return list
})

// parse reads the form of catalogue.txt: under a heading
//
//	== kind | where | retry | what to do
//
// lines of "code | meaning", which may end in "| what to do | retry" of their
// own.
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
				return nil, bad("a heading has kind, where, retry and what to do")
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
			return nil, bad("a line has code, meaning, and perhaps what to do and retry")
		}
		if e.Kind == "" || e.Code == "" || e.Meaning == "" || e.Do == "" || !slices.Contains(Retries, e.Retry) {
			return nil, bad("something is missing or unknown")
		}
		list = append(list, e)
	}
	return list, nil
}

// Of returns what is known of a code, which may stand for more than one thing:
// what is called exactly so, else what it is an instance of. The
// urn:notifyd: of problem types may stand before it.
func Of(code string) (found []Entry) {
	code = strings.TrimPrefix(strings.TrimSpace(code), "urn:notifyd:")
	for _, e := range All() {
		if e.Code == code {
			found = append(found, e)
		}
	}
	for _, e := range All() {
		if len(found) == 0 && e.stands(code) {
			return []Entry{e}
		}
	}
	return found
}

// hole is what <...> in a code stands for.
var hole = regexp.MustCompile(`<[a-z]+>`)

// stands reports whether the entry is of a family that code belongs to.
func (e *Entry) stands(code string) bool {
	if !hole.MatchString(e.Code) {
		return false
	}
	parts := hole.Split(e.Code, -1)
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(`^` + strings.Join(parts, `[a-z0-9]+`) + `$`).MatchString(code)
}

// Near lists the codes, at most three, that a mistyped one may have meant: those
// the fewest typing errors away, which distance counts.
func Near(code string, distance func(a, b string) int) (names []string) {
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

// retryWords say the same as Retries to people.
var retryWords = map[string]string{
	"no": "no", "yes": "yes, the same again", "after": "after you have done this", "itself": "notifyd does it by itself",
}

// RetryWords is Retry for people.
func (e *Entry) RetryWords() string { return retryWords[e.Retry] }
