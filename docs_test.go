package layout_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// made are paths that documents name and that runs leave behind.
var made = []string{"bench/results.json"}

var (
	quoted = regexp.MustCompile("`([^`\n]+)`")
	inRepo = regexp.MustCompile(`^(cmd|dashboards|docs|examples|pkg|proto|scenarios|scripts|tests)/[\w./*-]+$`)
	source = regexp.MustCompile(`^[\w]+\.(go|proto|ya?ml|html|txt)$`)
	linked = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	named  = regexp.MustCompile(`\bTest[A-Z]\w+`)
	tested = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// documents returns the text of every document by its path, but not the runbooks and the
// changelog: these belong to a release.
func documents(t *testing.T) map[string]string {
	t.Helper()
	names := []string{"README.md", "DESIGN.md", "CONTRIBUTING.md", "SECURITY.md", "dashboards/README.md"}
	pages, err := fs.Glob(os.DirFS("."), "docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("docs/*.md: %d pages, %v", len(pages), err)
	}
	out := map[string]string{}
	for _, name := range append(names, pages...) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(b)
	}
	return out
}

// TestDocumentsAreTrue checks that the files, folders, packages, tests and make targets that
// documents name exist, and that every package has its line in CONTRIBUTING.md.
func TestDocumentsAreTrue(t *testing.T) {
	t.Parallel()
	there, bases, tests := tree(t)
	targets := makeTargets(t)
	docs := documents(t)
	for doc, text := range docs {
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			name := strings.TrimSuffix(m[1], "/")
			switch {
			case inRepo.MatchString(name) && !there[name] && !slices.Contains(made, name) && !strings.Contains(name, "*"):
				t.Errorf("%s names %s, which does not exist", doc, name)
			case source.MatchString(name) && !bases[name] && (doc == "DESIGN.md" || strings.HasPrefix(doc, "docs/internals")):
				t.Errorf("%s names a file %s, which does not exist", doc, name)
			}
		}
		for _, name := range named.FindAllString(text, -1) {
			if !slices.ContainsFunc(tests, func(have string) bool { return strings.HasPrefix(have, name) }) { // go test -run takes the beginning
				t.Errorf("%s names %s, which is no test", doc, name)
			}
		}
		for _, target := range madeIn(text) {
			if !targets[target] {
				t.Errorf("%s names make %s, which is no target of the Makefile", doc, target)
			}
		}
	}
	packages, err := os.ReadDir("pkg")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		if p.IsDir() && !strings.Contains(docs["CONTRIBUTING.md"], "`pkg/"+p.Name()) {
			t.Errorf("CONTRIBUTING.md has no line for pkg/%s", p.Name())
		}
	}
}

// tree lists what the repository holds: files and folders, names of files, tests.
func tree(t *testing.T) (there, bases map[string]bool, tests []string) {
	t.Helper()
	there, bases = map[string]bool{}, map[string]bool{}
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (name == ".git" || name == "bin") {
			return fs.SkipDir
		}
		there[name] = true
		if d.IsDir() {
			return nil
		}
		bases[d.Name()] = true
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(name)
		for _, m := range tested.FindAllSubmatch(b, -1) {
			tests = append(tests, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return there, bases, tests
}

// makeTargets returns the targets of the Makefile.
func makeTargets(t *testing.T) map[string]bool {
	t.Helper()
	b, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`).FindAllSubmatch(b, -1) {
		out[string(m[1])] = true
	}
	if len(out) < 20 {
		t.Fatalf("only %d targets are found in the Makefile", len(out))
	}
	return out
}

var (
	indented = regexp.MustCompile(`(?m)^    \S.*$`)
	makes    = regexp.MustCompile(`(?:^|&& |; |[A-Z]+=\S+ |' |" )make ([a-z][a-z0-9-]*)`)
)

// madeIn returns the make targets in the code of a document: inline and in indented lines,
// without their comments.
func madeIn(text string) (targets []string) {
	var code []string
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		code = append(code, m[1])
	}
	for _, line := range indented.FindAllString(text, -1) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
		code = append(code, line)
	}
	for _, c := range code {
		for _, m := range makes.FindAllStringSubmatch(c, -1) {
			targets = append(targets, m[1])
		}
	}
	return targets
}

// TestLinksResolve checks that each relative link of a document leads to a file or folder, and
// that its anchor is a heading of that file.
func TestLinksResolve(t *testing.T) {
	t.Parallel()
	docs := documents(t)
	links := 0
	for doc, text := range docs {
		for _, m := range linked.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(m[1], "#")
			to := doc
			if file != "" {
				to = path.Join(path.Dir(doc), file)
			}
			target, known := docs[to]
			if !known {
				b, err := os.ReadFile(to)
				if info, statErr := os.Stat(to); statErr != nil || err != nil && !info.IsDir() {
					t.Errorf("%s links to %s, which does not exist", doc, to)
					continue
				}
				target = string(b)
			}
			if anchor != "" && !slices.Contains(anchors(target), anchor) {
				t.Errorf("%s links to %s: %s has no heading for #%s", doc, m[1], to, anchor)
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links are found", links)
	}
}

var fenced = regexp.MustCompile("(?ms)^```.*?\n```$")

// anchors returns the anchors of a document's headings, as GitHub makes them.
func anchors(text string) (list []string) {
	text = fenced.ReplaceAllString(text, "")
	for line := range strings.Lines(text) {
		title := strings.TrimLeft(line, "#")
		if title == line || !strings.HasPrefix(title, " ") {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(title))
		if slices.Contains(list, anchor) {
			anchor += "-1"
		}
		list = append(list, anchor)
	}
	return list
}

// maxPageBytes is the limit of a page of docs/. maxBytes has the limits of other documents.
const maxPageBytes = 15_000

var maxBytes = map[string]int{"README.md": 12_000, "DESIGN.md": 30_000}

func TestDocumentsAreShort(t *testing.T) {
	t.Parallel()
	for doc, text := range documents(t) {
		limit := maxBytes[doc]
		if strings.HasPrefix(doc, "docs/") {
			limit = maxPageBytes
		}
		if limit > 0 && len(text) > limit {
			t.Errorf("%s has %d bytes, at most %d are allowed: move a subject to a page of its own in docs/", doc, len(text), limit)
		}
	}
}

// TestIndexListsEveryPage checks that docs/README.md has a row for each page of docs/.
func TestIndexListsEveryPage(t *testing.T) {
	t.Parallel()
	docs := documents(t)
	const index = "docs/README.md"
	for doc := range docs {
		page, ok := strings.CutPrefix(doc, "docs/")
		if !ok || doc == index {
			continue
		}
		if !regexp.MustCompile(`(?m)^\| \[[^\]]+\]\(` + regexp.QuoteMeta(page) + `\) \|`).MatchString(docs[index]) {
			t.Errorf("%s has no row for %s", index, page)
		}
	}
}

var (
	proofToken = regexp.MustCompile("`[^`]+`|\\b(?:Test|Fuzz)[A-Z]\\w+")
	declared   = regexp.MustCompile(`(?m)^func ([A-Z]\w*)[\[(]`)
)

// TestGuaranteesNameTheirProofs checks the last column of every row of docs/guarantees*.md and
// docs/failures*.md: each test is declared in the package that stands before it, each make target is in the
// Makefile, each mutant is one that the proofs can make, and each row has a proof.
func TestGuaranteesNameTheirProofs(t *testing.T) {
	t.Parallel()
	targets := makeTargets(t)
	mutants, err := os.ReadFile("tests/internal/rig/mutants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	guarantees, failures := 0, 0
	for doc, text := range documents(t) {
		rows := &guarantees
		switch {
		case strings.HasPrefix(doc, "docs/failures"):
			rows = &failures
		case !strings.HasPrefix(doc, "docs/guarantees"):
			continue
		}
		inTable := false // behind the header of a table whose last column is the proof
		for line := range strings.Lines(text) {
			cells := strings.Split(strings.Trim(line, "| \n"), "|")
			proof := strings.TrimSpace(cells[len(cells)-1])
			switch {
			case !strings.HasPrefix(line, "|"):
				inTable = false
			case !inTable:
				inTable = proof == "test that fails without it" || proof == "test" || proof == "proof"
			case !strings.HasPrefix(line, "|---") && proof != "none of its own":
				*rows++
				for _, problem := range proofProblems(proof, targets, string(mutants)) {
					t.Errorf("%s: %s: %s", doc, cells[0], problem)
				}
			}
		}
	}
	if guarantees < 60 || failures < 60 {
		t.Errorf("only %d guarantees and %d failures are found", guarantees, failures)
	}
	for _, bad := range []string{
		"`pkg/worker` TestOrderPerNobody", "`pkg/nowhere` TestModel", "TestModel", "`make nothing`", "`pkg/worker`",
		"`make torture`; mutant `no-such`", "`pkg/engine/enginetest` suite `Nothing`", "`pkg/limit` TestOrderPerUser",
	} {
		if len(proofProblems(bad, targets, string(mutants))) == 0 {
			t.Errorf("the proof %q passes", bad)
		}
	}
}

// proofProblems returns what is wrong with a proof: text that names packages, tests, suites, make
// targets and mutants.
func proofProblems(proof string, targets map[string]bool, mutants string) (problems []string) {
	var functions map[string]bool // of the package that was named last
	pkg, proofs := "", 0
	for _, at := range proofToken.FindAllStringIndex(proof, -1) {
		token, before := strings.Trim(proof[at[0]:at[1]], "`"), proof[:at[0]]
		command, isMake := strings.CutPrefix(strings.TrimPrefix(token, "NODES=3 "), "make ")
		switch {
		case isMake:
			proofs++
			if target, _, _ := strings.Cut(command, " "); !targets[target] {
				problems = append(problems, "make "+target+" is no target of the Makefile")
			}
		case strings.HasSuffix(before, "mutant "):
			if !strings.Contains(mutants, "\n  "+token+":\n") {
				problems = append(problems, token+" is no mutant of tests/internal/rig/mutants.yaml")
			}
		case strings.HasSuffix(before, "suite "), strings.HasPrefix(token, "Test"), strings.HasPrefix(token, "Fuzz"):
			proofs++
			if !functions[token] {
				problems = append(problems, fmt.Sprintf("package %q declares no %s", pkg, token))
			}
		case inRepo.MatchString(token):
			pkg, functions = token, declaredIn(token)
		}
	}
	if proofs == 0 {
		problems = append(problems, "it names no test and no make target")
	}
	return problems
}

// declaredIn returns the exported functions that the Go files of a folder declare.
func declaredIn(folder string) map[string]bool {
	out := map[string]bool{}
	files, _ := fs.Glob(os.DirFS("."), path.Join(folder, "*.go"))
	for _, file := range files {
		b, _ := os.ReadFile(file)
		for _, m := range declared.FindAllSubmatch(b, -1) {
			out[string(m[1])] = true
		}
	}
	return out
}

// TestFiguresOfTheReadme checks README.md against what produces its figures: rows of P figures
// against docs/performance*.md, which docs/performance.sh fills from bench/results.json, and
// the figures of the demo against scripts/demo.sh.
func TestFiguresOfTheReadme(t *testing.T) {
	t.Parallel()
	docs := documents(t)
	measured := map[string]bool{}
	for doc, text := range docs {
		if strings.HasPrefix(doc, "docs/performance") {
			for line := range strings.Lines(text) {
				measured[line] = true
			}
		}
	}
	figures := 0
	for line := range strings.Lines(docs["README.md"]) {
		if regexp.MustCompile(`^\| P\d`).MatchString(line) {
			if figures++; !measured[line] {
				t.Errorf("README.md has a figure that is not in docs/performance*.md: %s", line)
			}
		}
	}
	if figures == 0 {
		t.Error("README.md has no row of docs/performance*.md")
	}

	script, err := os.ReadFile("scripts/demo.sh")
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	sum := regexp.MustCompile(`(?m)^sent=\$\(\(([\d +]+)\)\)$`).FindSubmatch(script)
	fired := regexp.MustCompile(`(?m)^fired=(\d+)$`).FindSubmatch(script)
	if sum == nil || fired == nil {
		t.Fatal("scripts/demo.sh says no longer how much it sends and fires")
	}
	for n := range strings.SplitSeq(string(sum[1]), "+") {
		v, err := strconv.Atoi(strings.TrimSpace(n))
		if err != nil {
			t.Fatal(err)
		}
		sent += v
	}
	triggers, err := strconv.Atoi(string(fired[1]))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("send %s notifications, fire %s triggers", grouped(sent), grouped(triggers)),
		fmt.Sprintf("demo sent=%d delivered=%d lost=0 duplicates=0 triggers=%d called=%d early=0", sent, sent, triggers, triggers),
	} {
		if !strings.Contains(docs["README.md"], want) {
			t.Errorf("README.md does not say %q, as scripts/demo.sh does", want)
		}
	}
}

// grouped writes a number with a comma before its last three digits.
func grouped(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
