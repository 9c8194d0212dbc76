package layout_test

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// made are paths that documents name and that runs leave behind.
var made = []string{"bench/results.json"}

var (
	quoted = regexp.MustCompile("`([^`\n]+)`")
	inRepo = regexp.MustCompile(`^(cmd|dashboards|docs|examples|pkg|proto|scenarios|scripts|tests)/[\w./*-]+$`)
	source = regexp.MustCompile(`^[\w]+\.(go|proto|ya?ml|html|txt)$`)
	linked = regexp.MustCompile(`\]\(([^)#\s]+)\)`)
	named  = regexp.MustCompile(`\bTest[A-Z]\w+`)
	tested = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// TestDocumentsAreTrue: what the documents name is there: files, folders, packages
// and tests; and every package has its line in CONTRIBUTING.md.
func TestDocumentsAreTrue(t *testing.T) {
	t.Parallel()
	there, bases, tests := tree(t)
	docs := []string{"README.md", "DESIGN.md", "CONTRIBUTING.md", "dashboards/README.md"}
	pages, err := fs.Glob(os.DirFS("."), "docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("docs/*.md: %d pages, %v", len(pages), err)
	}
	for _, doc := range append(docs, pages...) {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			name := strings.TrimSuffix(m[1], "/")
			switch {
			case inRepo.MatchString(name) && !there[name] && !slices.Contains(made, name) && !strings.Contains(name, "*"):
				t.Errorf("%s names %s, which is not there", doc, name)
			case source.MatchString(name) && !bases[name] && (doc == "DESIGN.md" || doc == "docs/internals.md"):
				t.Errorf("%s names a file %s, which is nowhere", doc, name)
			}
		}
		for _, m := range linked.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if to := path.Join(path.Dir(doc), m[1]); !there[to] {
				t.Errorf("%s links to %s, which is not there", doc, to)
			}
		}
		for _, name := range named.FindAllString(text, -1) {
			if !slices.ContainsFunc(tests, func(have string) bool { return strings.HasPrefix(have, name) }) { // go test -run takes the beginning
				t.Errorf("%s names %s, which is no test", doc, name)
			}
		}
	}
	contributing, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	packages, err := os.ReadDir("pkg")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		if p.IsDir() && !strings.Contains(string(contributing), "`pkg/"+p.Name()) {
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

// maxSize is how many bytes the documents that everybody reads first may have: the rest
// stands in docs/.
var maxSize = map[string]int64{"README.md": 20_000, "DESIGN.md": 30_000}

func TestFirstDocumentsAreShort(t *testing.T) {
	t.Parallel()
	for doc, most := range maxSize {
		info, err := os.Stat(doc)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > most {
			t.Errorf("%s has %d bytes; move parts to docs/ until it has at most %d", doc, info.Size(), most)
		}
	}
}
