package layout_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

const module = "github.com/notifyd/notifyd/"

// floors is the architecture: every package of ours, the lowest floor first, and which
// others it may import, by their path below pkg. A package imports packages of its own
// floor and of floors below. A package that is not listed fails the test, and so does an
// import that is not.
var floors = []floor{
	{"foundations: they know nothing of each other but notify, setting and files", map[string]string{
		"internal/atomicfile": "",
		"internal/freeport":   "", // ports of servers that come back
		"internal/killpoint":  "",
		"pkg/notify":          "",
		"pkg/codec":           "",                           // records as bytes
		"pkg/setting":         "notify",                     // defaults and ranges by tags of fields
		"pkg/secrets":         "notify internal/atomicfile", // files of secrets, and sealing texts
		"pkg/term":            "notify internal/atomicfile",
		"pkg/term/paint":      "term",
		"pkg/trace":           "setting", // spans; the only one that knows OpenTelemetry
		"pkg/trace/tracetest": "",        // a collector for tests
		"pkg/backup":          "notify internal/atomicfile",
	}},
	{"tools of notifyctl that stand alone, and files that programs carry", map[string]string{
		"pkg/tool/humantime":  "notify",
		"pkg/tool/capacity":   "notify term",
		"pkg/tool/codes":      "",
		"pkg/tool/promcheck":  "",
		"docs":                "",
		"dashboards":          "",
		"dashboards/build":    "",
		"dashboards/ruletest": "", // a module of its own
	}},
	{"contracts, and what is built once over them", map[string]string{
		"pkg/engine": "notify",
		"pkg/rows":   "",
		"pkg/store":  "codec engine rows notify", // contracts of engine over rows
	}},
	{"engines: one technology each", map[string]string{
		"pkg/engine/memory":     "engine notify rows store",
		"pkg/engine/pebble":     "notify rows setting store",
		"pkg/engine/cassandra":  "codec engine notify rows secrets setting store",
		"pkg/engine/redis":      "engine notify secrets setting",
		"pkg/engine/postgres":   "engine notify setting",
		"pkg/engine/sqs":        "engine notify setting",
		"pkg/engine/faulty":     "engine notify rows",
		"pkg/archive/s3":        "",
		"pkg/archive/s3/s3test": "", // a store for tests
	}},
	{"the log and what follows it", map[string]string{
		"pkg/log":          "notify internal/killpoint secrets setting",
		"pkg/log/embedded": "engine notify log backup internal/atomicfile setting",
		"pkg/history":      "engine notify log backup setting",
	}},
	{"rules that stages share", map[string]string{
		"pkg/users":       "engine notify secrets setting",
		"pkg/limit":       "engine notify setting",
		"pkg/timer/wheel": "",
		"pkg/api":         "notify",                           // what is on the wire
		"pkg/request":     "engine notify internal/killpoint", // bodies, keys and answers of both front doors
	}},
	{"suites that every engine passes", map[string]string{
		"pkg/engine/enginetest": "engine notify rows store limit request users",
	}},
	{"stages", map[string]string{
		"pkg/timer":       "engine notify log timer/wheel internal/killpoint setting",
		"pkg/schedule":    "engine notify internal/killpoint",
		"pkg/trigger":     "engine notify request limit internal/killpoint trace setting",
		"pkg/intake":      "engine notify api log users limit request internal/killpoint setting",
		"pkg/worker":      "engine notify log timer/wheel limit users timer internal/killpoint trace setting",
		"pkg/provider/h2": "setting", // HTTP/2 by frames: knows no provider
		"pkg/provider":    "notify limit provider/h2 setting",
	}},
	{"the providers' side of the wire: it knows nothing of how we call them", map[string]string{
		"pkg/simulator": "notify setting",
	}},
	{"what callers and operators see", map[string]string{
		"pkg/deadletter":  "engine notify api log history setting store",
		"pkg/conserve":    "engine notify log history schedule timer deadletter api setting", // not trigger, whose own tests run these checks
		"pkg/outcomehook": "engine notify deadletter trigger internal/killpoint log setting",
		"pkg/archive":     "engine notify deadletter history log internal/killpoint internal/atomicfile setting",
		"pkg/web":         "notify api term",
		"pkg/server":      "engine notify request api intake deadletter users history limit schedule secrets trigger trace setting",
		"pkg/load":        "notify api internal/atomicfile log simulator term", // simulator: what its control API says; log: its partitions, for the target kafka; term: which word was meant
		"pkg/load/report": "load internal/atomicfile notify term",              // what is left of a run, and comparing runs
		"pkg/load/agent":  "api load notify",                                   // a run's load from several machines
		"pkg/load/screen": "load load/report notify term term/paint",           // term: how texts and numbers are written for people
		"pkg/console":     "notify api term term/paint",
	}},
	{"what a process does among others, and what it counts", map[string]string{
		"pkg/cluster": "engine notify api internal/killpoint limit server trigger worker", // no technology of engines
		"pkg/metrics": "engine notify api deadletter intake log server timer trigger worker",
	}},
	{"the process: the only place that knows more than one engine", map[string]string{
		"pkg/app": everything("load", "load/agent", "load/launch", "load/report", "load/screen", "console", "engine/faulty", "engine/enginetest", "trace/tracetest", "archive/s3/s3test"),
	}},
	{"what the tools start", map[string]string{
		"pkg/load/launch": "app internal/freeport api load notify term", // a notifyd in this process or one of its own
	}},
	{"the programs", map[string]string{
		"cmd/notifyd":   "app api backup cluster engine internal/atomicfile notify server simulator load term",
		"cmd/notifyctl": "app api archive backup internal/atomicfile load load/agent load/launch load/report load/screen console notify secrets simulator term tool/humantime tool/capacity tool/codes tool/promcheck docs dashboards",
	}},
}

type floor struct {
	name      string
	mayImport map[string]string
}

// mayImport is the table of all floors.
var mayImport = func() map[string]string {
	all := map[string]string{}
	for _, f := range floors {
		maps.Copy(all, f.mayImport)
	}
	return all
}()

// everything stands for all packages of pkg but some.
func everything(but ...string) string { return "* -" + strings.Join(but, " -") }

// onlyHere names libraries that one place of ours may import, by prefix: another
// one beside it is a change of few files.
var onlyHere = map[string]string{"go.opentelemetry.io/": "pkg/trace"}

// onlyTests may be imported by test files alone, and by enginetest, which is
// one in all but name.
var onlyTests = []string{"testing", "testing/", module + "pkg/engine/enginetest"}

func TestImports(t *testing.T) {
	t.Parallel()
	for _, problem := range check(os.DirFS(".")) {
		t.Error(problem)
	}
}

// leftovers are endings of files that merges, patches and editors leave behind.
var leftovers = []string{".orig", ".rej", ".bak", ".swp", ".swo", "~"}

// TestNoLeftovers fails on a file that a merge, a patch or an editor left in the
// tree, tracked or not.
func TestNoLeftovers(t *testing.T) {
	t.Parallel()
	names, err := left(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		t.Errorf("%s was left behind by a merge, a patch or an editor: remove it", name)
	}
}

// left lists the leftovers of a tree. It skips what is not part of the project: the
// folders of git and of installed servers, and what programs wrote.
func left(repo fs.FS) (names []string, err error) {
	err = fs.WalkDir(repo, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && name != "." && errors.Is(err, fs.ErrNotExist):
			return nil // removed meanwhile, by a test beside this one
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", ".engines", "bin", "data", "bench"}, name):
			return fs.SkipDir
		case !d.IsDir() && slices.ContainsFunc(leftovers, func(end string) bool { return strings.HasSuffix(name, end) }):
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

func TestLeftoversAreFound(t *testing.T) {
	t.Parallel()
	names, err := left(fstest.MapFS{
		"a.go": {}, "cmd/notifyd/main.go.orig": {}, "pkg/a/.b.go.swp": {}, "docs/x.md.rej": {}, "tests/y.bak": {}, "z~": {},
		"bin/tool.orig": {}, ".git/x.orig": {}, "pkg/original.go": {},
	})
	want := []string{"cmd/notifyd/main.go.orig", "docs/x.md.rej", "pkg/a/.b.go.swp", "tests/y.bak", "z~"}
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("found %q, %v; want %q", names, err, want)
	}
}

// check opens the files itself rather than asking "go list", so that the test
// cache notices when an import changes. It looks at every file, whatever its
// build tags.
func check(repo fs.FS) (problems []string) {
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, root := range []string{"cmd", "pkg", "internal", "docs", "dashboards"} {
		err := fs.WalkDir(repo, root, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil && name == root && errors.Is(err, fs.ErrNotExist):
				return nil // not begun yet
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case d.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
				return nil
			}
			from := path.Dir(name)
			list, listed := mayImport[from]
			if !listed {
				report("%s: package %s is not in the table", name, from)
				return nil
			}
			imports, err := importsOf(repo, name)
			if err != nil {
				return err
			}
			for _, to := range imports {
				if from != "pkg/engine/enginetest" && slices.ContainsFunc(onlyTests, func(p string) bool {
					return to == p || strings.HasSuffix(p, "/") && strings.HasPrefix(to, p)
				}) {
					report("%s imports %s, which is for tests", name, to)
					continue
				}
				for library, home := range onlyHere {
					if strings.HasPrefix(to, library) && from != home && !strings.HasPrefix(from, home+"/") {
						report("%s imports %s, which only %s does", name, to, home)
					}
				}
				if ours, ok := strings.CutPrefix(to, module); ok && !allowed(list, ours) {
					report("%s must not import %s", name, ours)
				}
			}
			return nil
		})
		if err != nil {
			report("%v", err)
		}
	}
	return problems
}

func importsOf(repo fs.FS, name string) ([]string, error) {
	src, err := fs.ReadFile(repo, name)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var imports []string
	for _, spec := range file.Imports {
		to, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		imports = append(imports, to)
	}
	return imports, nil
}

// allowed reports whether a list of the table holds a package of ours.
func allowed(list, ours string) bool {
	name, inPkg := strings.CutPrefix(ours, "pkg/")
	inside := strings.HasPrefix(ours, "internal/")
	if !inPkg && !inside && ours != "docs" && ours != "dashboards" {
		return false // no package imports cmd, and only tests import generated code
	}
	words := strings.Fields(list)
	if slices.Contains(words, "*") {
		return (inPkg || inside) && !slices.Contains(words, "-"+name)
	}
	return slices.Contains(words, name)
}

// TestFloors fails if the table allows a package to import one of a floor above it, or
// lists a package twice.
func TestFloors(t *testing.T) {
	t.Parallel()
	level := map[string]int{}
	for i, f := range floors {
		for name := range f.mayImport {
			if _, twice := level[name]; twice {
				t.Errorf("%s is on two floors", name)
			}
			level[name] = i
		}
	}
	for from, list := range mayImport {
		for _, word := range strings.Fields(list) {
			to := word
			if _, ok := mayImport[word]; !ok {
				to = "pkg/" + word
			}
			if at, ok := level[to]; ok && at > level[from] {
				t.Errorf("%s may import %s, which is above it (%s)", from, to, floors[at].name)
			}
		}
	}
}

// TestTableNamesPackages catches a word in the table that stands for nothing.
func TestTableNamesPackages(t *testing.T) {
	t.Parallel()
	for from, list := range mayImport {
		for _, word := range strings.Fields(list) {
			_, pkg := mayImport["pkg/"+strings.TrimPrefix(word, "-")]
			if _, ok := mayImport[word]; !ok && !pkg && word != "*" {
				t.Errorf("%s may import %q, which is not in the table", from, word)
			}
		}
	}
}

func TestCheckFindsProblems(t *testing.T) {
	t.Parallel()
	f := func(name, imported, want string) {
		t.Helper()
		src := "//go:build never\n\npackage p\n\nimport _ " + strconv.Quote(imported) + "\n"
		got := strings.Join(check(fstest.MapFS{name: {Data: []byte(src)}}), "; ")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s importing %s: %q, want %q", name, imported, got, want)
		}
	}
	f("pkg/engine/a.go", module+"pkg/notify", "")
	f("pkg/engine/a.go", "net/http", "")
	f("pkg/engine/a.go", module+"pkg/log", "must not import pkg/log")
	f("pkg/engine/a_test.go", module+"pkg/log", "")
	f("pkg/engine/testdata/a.go", module+"pkg/log", "")
	f("pkg/util/a.go", "net/http", "not in the table")
	f("pkg/app/a.go", module+"pkg/engine/pebble", "")
	f("pkg/cluster/a.go", module+"pkg/engine/redis", "must not import pkg/engine/redis")
	f("pkg/app/a.go", module+"pkg/load", "must not import pkg/load")
	f("pkg/app/a.go", module+"cmd/notifyd", "must not import cmd/notifyd")
	f("pkg/app/a.go", module+"pkg/engine/enginetest", "is for tests")
	f("pkg/app/a.go", "testing", "is for tests")
	f("pkg/app/a.go", "testing/fstest", "is for tests")
	f("pkg/engine/enginetest/a.go", "testing", "")
	f("cmd/notifyctl/main.go", module+"pkg/server", "must not import pkg/server")
	f("cmd/notifyctl/main.go", module+"dashboards", "")
	f("cmd/notifyctl/main.go", module+"dashboards/build", "must not import dashboards/build")
	f("pkg/trace/a.go", "go.opentelemetry.io/otel", "")
	f("pkg/worker/a.go", "go.opentelemetry.io/otel/trace", "which only pkg/trace does")
	f("pkg/app/a.go", module+"dashboards", "must not import dashboards")
}

// longTypes are the types that are larger than TestTypesStayTogether wants.
var longTypes = map[string]bool{
	"pkg/api.Client":    true, // a method for each route, as callers expect of a client
	"pkg/history.Store": true,
	"pkg/web.Page":      true,
}

// A reader finds the methods of a type in at most four files, and no type has more
// than 40.
func TestTypesStayTogether(t *testing.T) {
	methods, files := map[string]int{}, map[string]map[string]bool{}
	for _, root := range []string{"cmd", "internal", "pkg"} {
		err := fs.WalkDir(os.DirFS("."), root, func(name string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
					key := path.Dir(name) + "." + typeName(fn.Recv.List[0].Type)
					if files[key] == nil {
						files[key] = map[string]bool{}
					}
					methods[key]++
					files[key][name] = true
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for key, n := range methods {
		long := n > 40 || len(files[key]) > 4
		if long != longTypes[key] {
			t.Errorf("%s has %d methods in %d files; it is listed as long: %v", key, n, len(files[key]), longTypes[key])
		}
	}
}

// typeName is the name in the receiver of a method.
func typeName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.IndexExpr:
		return typeName(x.X)
	case *ast.IndexListExpr:
		return typeName(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}
