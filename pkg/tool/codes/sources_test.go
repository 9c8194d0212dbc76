package codes

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// sources are the files the product is built from, parsed.
type sources struct {
	fset  *token.FileSet
	files map[string]*ast.File // by path from the module's root

	codes   map[string]string // code -> a place that prints it
	structs map[string]int    // declared types with a field code, and where in them it is
	may     map[string]string // as codes, but only the catalogue's word says so: a word of a switch behind a prefix
}

// readSources leaves out tests and what exists for them alone.
func readSources(t *testing.T) *sources {
	t.Helper()
	s := &sources{fset: token.NewFileSet(), files: map[string]*ast.File{}, codes: map[string]string{}, may: map[string]string{}, structs: map[string]int{}}
	root := filepath.Join("..", "..", "..")
	for _, top := range []string{"cmd", "pkg", "internal"} {
		if err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "testdata" || d.Name() == "enginetest" || d.Name() == "faulty"):
				return fs.SkipDir
			case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			f, err := parser.ParseFile(s.fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			s.files[filepath.ToSlash(rel)] = f
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func literal(e ast.Expr) (string, bool) {
	b, ok := e.(*ast.BasicLit)
	if !ok || b.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(b.Value)
	return s, err == nil
}

// errorCodes finds what is given as a code: to a field or variable called code,
// to a parameter of that name, as a constant Code..., and the few ways besides.
func (s *sources) errorCodes() {
	params := s.codeParams()
	for path, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			if v, ok := n.(*ast.TypeSpec); ok {
				if st, ok := v.Type.(*ast.StructType); ok {
					s.structs[filepath.ToSlash(filepath.Dir(path))+"."+v.Name.Name] = position(st.Fields, "code")
				}
			}
			return true
		})
	}
	for path, f := range s.files {
		dir := filepath.ToSlash(filepath.Dir(path))
		wire := dir == "pkg/simulator" // whose other codes are the providers'
		put := func(e ast.Expr) { s.put(e, path) }
		ast.Inspect(f, func(n ast.Node) bool {
			switch v := n.(type) {
			case *ast.CompositeLit:
				s.positional(v, path)
			case *ast.KeyValueExpr:
				if id, ok := v.Key.(*ast.Ident); ok && (id.Name == "Code" || !wire && id.Name == "code") {
					put(v.Value)
				}
			case *ast.AssignStmt:
				for i, l := range v.Lhs {
					if len(v.Rhs) == len(v.Lhs) && !wire && nameOf(l) == "code" {
						put(v.Rhs[i])
					}
				}
			case *ast.ValueSpec:
				for i, l := range v.Names {
					if i < len(v.Values) && strings.HasPrefix(strings.ToLower(l.Name), "code") && !wire {
						put(v.Values[i])
					}
				}
			case *ast.CallExpr:
				pkg, name := callee(v)
				if name == "NotFound" && pkg == "notify" {
					if what, ok := literal(v.Args[0]); ok {
						s.codes[what+"_not_found"] = path
					}
				}
				key := dir + "." + name
				if pkg != "" && params["pkg/"+pkg+"."+name] > 0 {
					key = "pkg/" + pkg + "." + name
				}
				if i := params[key]; i > 0 && i <= len(v.Args) && (!wire || pkg == "notify") {
					put(v.Args[i-1])
				}
			case *ast.FuncDecl:
				if at := returned(v.Type); at > 0 && !wire {
					ast.Inspect(v.Body, func(n ast.Node) bool {
						if r, ok := n.(*ast.ReturnStmt); ok && at <= len(r.Results) {
							put(r.Results[at-1])
						}
						return true
					})
				}
				if v.Name.Name == "httpCode" || v.Name.Name == "twilioCode" {
					ast.Inspect(v.Body, func(n ast.Node) bool {
						if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) == 1 {
							put(r.Results[0])
						}
						return true
					})
				}
			}
			return true
		})
	}
	delete(s.codes, "*_not_found") // how notify.NotFound makes them: its calls are read above
	s.tables()
}

// put notes a code: a literal, or a prefix or suffix of a family, as "*_refused".
func (s *sources) put(e ast.Expr, path string) {
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.ADD {
		if end, ok := literal(b.Y); ok {
			s.codes["*"+end] = path
		} else if begin, ok := literal(b.X); ok {
			s.codes[begin+"*"] = path
			s.words(begin, path)
		}
		return
	}
	code, ok := literal(e)
	if ok && code != "" && strings.Trim(code, "abcdefghijklmnopqrstuvwxyz0123456789_") == "" {
		s.codes[code] = path
	}
}

// words are those of the switches in a file that makes a family of codes.
func (s *sources) words(begin, path string) {
	ast.Inspect(s.files[path], func(n ast.Node) bool {
		if c, ok := n.(*ast.CaseClause); ok {
			for _, e := range c.List {
				if w, ok := literal(e); ok {
					s.may[begin+w] = path
				}
			}
		}
		return true
	})
}

// positional reads values of a struct that has a field code, without its name:
// one of a declared type, or tables of one.
func (s *sources) positional(v *ast.CompositeLit, path string) {
	at := s.codeField(v.Type, path)
	rows := []ast.Expr{v}
	switch t := v.Type.(type) {
	case *ast.ArrayType:
		at, rows = s.codeField(t.Elt, path), v.Elts
	case *ast.MapType:
		at, rows = s.codeField(t.Value, path), v.Elts
	}
	for _, e := range rows {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			e = kv.Value
		}
		row, ok := e.(*ast.CompositeLit)
		if !ok || at == 0 || at > len(row.Elts) {
			continue
		}
		if _, named := row.Elts[0].(*ast.KeyValueExpr); !named {
			s.put(row.Elts[at-1], path)
		}
	}
}

// codeField is the position of the field code of a struct type; 0: it has none.
func (s *sources) codeField(t ast.Expr, path string) int {
	switch t := t.(type) {
	case *ast.StructType:
		return position(t.Fields, "code")
	case *ast.Ident:
		return s.structs[filepath.ToSlash(filepath.Dir(path))+"."+t.Name]
	}
	return 0
}

// position of a field or parameter, from 1; 0: there is none of that name.
func position(fs *ast.FieldList, name string) int {
	i := 0
	for _, f := range fs.List {
		for _, n := range f.Names {
			if i++; n.Name == name {
				if id, ok := f.Type.(*ast.Ident); ok && id.Name == "string" {
					return i
				}
			}
		}
	}
	return 0
}

// codeParams finds the functions that are given a code, and as which argument.
func (s *sources) codeParams() map[string]int {
	out := map[string]int{}
	for path, f := range s.files {
		dir := filepath.ToSlash(filepath.Dir(path))
		add := func(name string, t *ast.FuncType) {
			at := position(t.Params, "code")
			if name == "unavailable" && at == 0 { // of pkg/trigger: what is away is the code
				at = position(t.Params, "what")
			}
			if at > 0 && name != "CodeIs" {
				out[dir+"."+name] = at
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch v := n.(type) {
			case *ast.FuncDecl:
				add(v.Name.Name, v.Type)
			case *ast.AssignStmt: // a closure
				if len(v.Lhs) == 1 && len(v.Rhs) == 1 {
					if fl, ok := v.Rhs[0].(*ast.FuncLit); ok {
						if id, ok := v.Lhs[0].(*ast.Ident); ok && position(fl.Type.Params, "code") > 0 {
							add(id.Name, fl.Type)
						}
					}
				}
			}
			return true
		})
	}
	return out
}

// returned is the position of a result called code; 0: there is none.
func returned(t *ast.FuncType) int {
	if t.Results == nil {
		return 0
	}
	return position(t.Results, "code")
}

func callee(c *ast.CallExpr) (pkg, name string) {
	switch fn := c.Fun.(type) {
	case *ast.Ident:
		return "", fn.Name
	case *ast.SelectorExpr:
		if id, ok := fn.X.(*ast.Ident); ok {
			return id.Name, fn.Sel.Name
		}
		return "", fn.Sel.Name
	}
	return "", ""
}

func nameOf(e ast.Expr) string {
	switch v := e.(type) {
	case *ast.Ident:
		return strings.ToLower(v.Name)
	case *ast.SelectorExpr:
		return strings.ToLower(v.Sel.Name)
	}
	return ""
}

// tables are the providers' own codes, which become ours.
func (s *sources) tables() {
	for _, of := range []struct{ file, name, prefix string }{
		{"pkg/provider/apns_answers.go", "apnsReasons", "apns_"},
		{"pkg/provider/fcm_answers.go", "fcmCodes", "fcm_"},
		{"pkg/provider/twilio_answers.go", "twilioCodes", "twilio_"},
	} {
		for _, e := range s.elements(of.file, of.name) {
			kv, ok := e.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			word := kv.Key.(*ast.BasicLit).Value
			if w, ok := literal(kv.Key); ok {
				word = snake(w)
			}
			s.codes[of.prefix+word] = of.file
		}
	}
	for _, k := range s.strings("pkg/notify/kind.go", "kindNames") {
		s.codes[k] = "pkg/notify/kind.go"
	}
}

// snake does what pkg/provider does: BadDeviceToken is bad_device_token.
func snake(word string) string {
	var b strings.Builder
	lower := false
	for _, c := range word {
		if c >= 'A' && c <= 'Z' {
			if lower {
				b.WriteByte('_')
			}
			b.WriteRune(c + 'a' - 'A')
			lower = false
			continue
		}
		b.WriteRune(c)
		lower = c != '_'
	}
	return b.String()
}

// elements of a list or map that a variable of a file is.
func (s *sources) elements(file, name string) (out []ast.Expr) {
	f := s.files[file]
	if f == nil {
		return nil
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 && v.Names[0].Name == name {
			if c, ok := v.Values[0].(*ast.CompositeLit); ok {
				out = c.Elts
			}
		}
		return true
	})
	return out
}

func (s *sources) strings(file, name string) (out []string) {
	for _, e := range s.elements(file, name) {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			e = kv.Value
		}
		if w, ok := literal(e); ok {
			out = append(out, w)
		}
	}
	return out
}

// constants of a file whose names begin so, as they are written.
func (s *sources) constants(file, prefix string) (out []string) {
	f := s.files[file]
	if f == nil {
		return nil
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			for i, n := range v.Names {
				if strings.HasPrefix(n.Name, prefix) && i < len(v.Values) {
					if b, ok := v.Values[i].(*ast.BasicLit); ok {
						out = append(out, strings.Trim(b.Value, `"`))
					}
				}
			}
		}
	}
	return out
}

// texts are all literals of a function.
func (s *sources) texts(file, function string) (out []string) {
	f := s.files[file]
	if f == nil {
		return nil
	}
	for _, d := range f.Decls {
		if fd, ok := d.(*ast.FuncDecl); ok && fd.Name.Name == function {
			ast.Inspect(fd, func(n ast.Node) bool {
				if e, ok := n.(ast.Expr); ok {
					if w, ok := literal(e); ok {
						out = append(out, w)
					}
				}
				return true
			})
		}
	}
	return out
}
