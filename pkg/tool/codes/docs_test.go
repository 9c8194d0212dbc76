package codes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// docsFolder holds the pages that this package's test generates: errors.md, which is the
// index, and a page for each of codePages.
const docsFolder = "../../../docs"

// maxPageBytes is the limit of every page of docs/; docs_test.go of the module's root holds it.
const maxPageBytes = 15_000

// codePage is one generated page. The catalogue's entries that holds accepts are on it, unless
// an earlier page of codePages has them.
type codePage struct {
	file, title, content string
	holds                func(e Entry) bool
}

// printedIn accepts error codes that are printed in the named place. retry may name the only
// value of Entry.Retry to accept.
func printedIn(place string, retry ...string) func(Entry) bool {
	return func(e Entry) bool {
		return e.Kind == "error" && strings.HasPrefix(e.Where, place) && (len(retry) == 0 || slices.Contains(retry, e.Retry))
	}
}

// codePages lists the pages in the order of the index. sections puts each heading of the
// catalogue on the first page that accepts the heading's first entry.
var codePages = []codePage{
	{"errors-requests.md", "Error codes of refused input", "what is wrong with a request, an item of a batch, or a file", printedIn("API answers, items of batches")},
	{"errors-unavailable.md", "Error codes of a busy or absent server", "the HTTP statuses 429 and 503: what to wait for before you send the same request again", printedIn("API answers", "yes")},
	{"errors-access.md", "Error codes of tokens, ids and states", "tokens and scopes, things that do not exist, states that forbid a change, and the operator page", func(e Entry) bool {
		return printedIn("API answers, notifyctl")(e) && e.Where == "API answers, notifyctl" || printedIn("operator page")(e)
	}},
	{"errors-providers.md", "Error codes of providers", "answers of APNs, FCM, Twilio and SendGrid", func(e Entry) bool {
		return printedIn("status, timeline")(e) && strings.Contains(e.Where, ": ")
	}},
	{"errors-delivery.md", "Error codes of deliveries", "why a notification or a callback failed, waits or was suppressed. These codes are the same for all providers", printedIn("status, timeline")},
	{"errors-server.md", "Error codes of a start and of the log output", "what notifyd prints when it does not start, and the codes of internal errors", func(e Entry) bool {
		return printedIn("start and log output")(e) || printedIn("log output of notifyd")(e) || printedIn("API answers")(e)
	}},
	{"errors-load.md", "Error codes of load tests", "`notifyctl load`, `notifyctl sim` and load agents", printedIn("notifyctl load")},
	{"states.md", "States, classes, verdicts and exit codes", "states of notifications, triggers, dead letters and circuits; classes of answers; verdicts of load runs; exit codes", func(e Entry) bool { return e.Kind != "error" }},
}

// section is a heading of the catalogue with its entries: they are printed in the same place.
// do and retry are what most of the entries share.
type section struct {
	kind, where, do, retry string
	entries                []Entry
}

// sections groups the catalogue by its headings. A heading ends where the kind, the place, or
// the advice that most entries share changes.
func sections(t *testing.T) (list []section) {
	t.Helper()
	for _, block := range strings.Split(text, "== ")[1:] {
		entries, err := parse("== " + block)
		if err != nil {
			t.Fatal(err)
		}
		heading, _, _ := strings.Cut(block, "\n")
		f := strings.Split(heading, " | ")
		list = append(list, section{kind: f[0], where: f[1], retry: f[2], do: f[3], entries: entries})
	}
	return list
}

// pagesOfCodes returns the text of every generated page by file name.
func pagesOfCodes(t *testing.T) map[string]string {
	t.Helper()
	const generated = "Generated from `pkg/tool/codes/catalogue.txt`: `UPDATE_DOCS=1 go test ./pkg/tool/codes`.\n"
	bodies := make([]strings.Builder, len(codePages))
	kinds := make([]string, len(codePages))     // the kind of each page's latest section
	providers := make([]string, len(codePages)) // its provider, if its codes belong to one
	for _, s := range sections(t) {
		i := slices.IndexFunc(codePages, func(p codePage) bool { return p.holds(s.entries[0]) })
		if i < 0 {
			t.Fatalf("no page of docs/ takes the codes printed in %q: add one to codePages", s.where)
		}
		if s.kind != kinds[i] && codePages[i].file == "states.md" {
			fmt.Fprintf(&bodies[i], "\n## %s\n", map[string]string{"state": "States", "class": "Classes", "verdict": "Verdicts", "exit": "Exit codes"}[s.kind])
		}
		kinds[i] = s.kind
		if _, provider, ok := strings.Cut(s.where, ": "); ok && s.kind == "error" && provider != providers[i] {
			providers[i] = provider
			fmt.Fprintf(&bodies[i], "\n## %s\n", provider)
		}
		writeSection(&bodies[i], s)
	}
	out := map[string]string{}
	var index strings.Builder
	index.WriteString("# Codes\n\n`notifyctl explain CODE` explains every code that notifyd and notifyctl print: what it means, what to do, and\n" +
		"whether to try again. The pages below hold the same text.\n\n| page | holds |\n|---|---|\n")
	for i, p := range codePages {
		fmt.Fprintf(&index, "| [%s](%s) | %s |\n", p.title, p.file, p.content)
		out[p.file] = fmt.Sprintf("# %s\n\nThis page covers %s.\n\n%s\nAll codes: [Codes](errors.md).\n%s", p.title, p.content,
			"Above each table you find what to do and whether to try again. If something else is right for a code, the row of the\n"+
				"code says so. An empty cell means: do what is written above the table.", bodies[i].String()) + "\n" + generated
	}
	index.WriteString("\n" + generated)
	out["errors.md"] = index.String()
	return out
}

// writeSection writes a table of codes. Advice that a row shares with its section is above the
// table, not in the row.
func writeSection(b *strings.Builder, s section) {
	fmt.Fprintf(b, "\n**Printed in:** %s. **What to do:** %s **Try again?** %s.\n\n", s.where, plain(s.do), upperFirst(retryWords[s.retry]))
	own := slices.ContainsFunc(s.entries, func(e Entry) bool { return e.Do != s.do || e.Retry != s.retry })
	if own {
		b.WriteString("| code | meaning | what to do instead |\n|---|---|---|\n")
	} else {
		b.WriteString("| code | meaning |\n|---|---|\n")
	}
	for _, e := range s.entries {
		fmt.Fprintf(b, "| `%s` | %s |", e.Code, plain(e.Meaning))
		if own {
			var advice []string
			if e.Do != s.do {
				advice = append(advice, plain(e.Do))
			}
			if e.Retry != s.retry {
				advice = append(advice, "Try again? "+upperFirst(e.RetryWords())+".")
			}
			fmt.Fprintf(b, " %s |", strings.Join(advice, " "))
		}
		b.WriteString("\n")
	}
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// plain keeps Markdown from taking <ULID> for HTML.
func plain(s string) string { return strings.NewReplacer("<", `\<`, ">", `\>`, "|", `\|`).Replace(s) }

// TestDocs checks that the generated pages of docs/ say what the catalogue says, that each code
// is on one page, and that no page is larger than maxPageBytes or left over.
func TestDocs(t *testing.T) {
	t.Parallel()
	pages := pagesOfCodes(t)
	if os.Getenv("UPDATE_DOCS") != "" {
		for file, want := range pages {
			if err := os.WriteFile(filepath.Join(docsFolder, file), []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	rows := 0
	for file, want := range pages {
		b, err := os.ReadFile(filepath.Join(docsFolder, file))
		if err != nil {
			t.Fatal(err)
		}
		if string(b) != want {
			t.Errorf("docs/%s is not what the catalogue says: UPDATE_DOCS=1 go test ./pkg/tool/codes", file)
		}
		if len(b) > maxPageBytes {
			t.Errorf("docs/%s has %d bytes, at most %d are allowed: divide it in codePages", file, len(b), maxPageBytes)
		}
		rows += strings.Count(want, "\n| `")
	}
	if rows != len(All()) {
		t.Errorf("the pages have %d rows, the catalogue has %d codes", rows, len(All()))
	}
	left, err := filepath.Glob(filepath.Join(docsFolder, "errors*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range left {
		if _, ok := pages[filepath.Base(name)]; !ok {
			t.Errorf("docs/%s is not generated any more: remove it", filepath.Base(name))
		}
	}
}
