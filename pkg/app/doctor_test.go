package app

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
)

// Every check of the doctor that can find something says what to do about it.
func TestEveryFindingSaysItsRepair(t *testing.T) {
	t.Parallel()
	checks := 0
	for _, file := range []string{"doctor.go", "doctor_servers.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok || len(c.Args) < 5 || !isAdd(c.Fun) {
				return true
			}
			if bad, ok := c.Args[1].(*ast.Ident); ok && bad.Name == "false" {
				return true // it never finds anything
			}
			checks++
			if repair, ok := c.Args[3].(*ast.BasicLit); ok && repair.Value == `""` {
				t.Errorf("%s: the finding at byte %d does not say what to do", file, c.Pos())
			}
			return true
		})
	}
	if checks < 20 {
		t.Errorf("only %d checks are found", checks)
	}
}

// TestLagNames: no two findings have the same name.
func TestLagNames(t *testing.T) {
	t.Parallel()
	all := []api.GroupLag{{Group: "push-workers", Topic: "a"}, {Group: "dead-letter-index", Topic: "a"}, {Group: "dead-letter-index", Topic: "b"}}
	for i, want := range []string{"push-workers", "dead-letter-index a", "dead-letter-index b"} {
		if got := lagName(&all[i], all); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestAllDone: a group counts as done only if it has a topic and nothing of it waits or is in
// flight.
func TestAllDone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		of   api.GroupLag
		done bool
	}{
		{api.GroupLag{Group: "push-workers", Topic: "a"}, true},
		{api.GroupLag{Group: "push-workers"}, false},
		{api.GroupLag{Group: "push-workers", Topic: "a", Lag: 1}, false},
		{api.GroupLag{Group: "push-workers", Topic: "a", InFlight: 1}, false},
	} {
		if got := allDone([]api.GroupLag{{Group: "sms-workers", Topic: "b"}, c.of}); got != c.done {
			t.Errorf("%+v: %v", c.of, got)
		}
	}
}

func TestDiskLevel(t *testing.T) {
	t.Parallel()
	f := func(freeMiB uint64, least int, want string) {
		t.Helper()
		if bad, level := diskLevel(freeMiB<<20, least); level != want || bad != (want != "") {
			t.Errorf("%d MiB free, %d needed: %q", freeMiB, least, level)
		}
	}
	f(255, 256, "fail")
	f(0, 256, "fail")
	f(256, 256, "warn")
	f(1023, 256, "warn")
	f(1024, 256, "")
	f(3000, 2048, "warn")
	f(4096, 2048, "")
}

// isAdd reports whether a call adds a finding with its repair.
func isAdd(fun ast.Expr) bool {
	f, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := f.X.(*ast.Ident)
	return ok && x.Name == "d" && f.Sel.Name == "Add"
}
