package rig

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Mutant breaks one mechanism of notifyd. It replaces the text Old in a file by the text New. The
// file must contain Old exactly once. File is relative to the root of the repository.
type Mutant struct {
	File, Old, New string
	// By is the group of proofs that must fail with the mutant. It is empty if the proof program has
	// no groups.
	By string
}

//go:embed mutants.yaml
var mutantTable []byte

// Mutants returns the mutants that a proof program must notice, by their names.
func Mutants(program string) (map[string]Mutant, error) {
	var all map[string]map[string]Mutant
	d := yaml.NewDecoder(bytes.NewReader(mutantTable))
	d.KnownFields(true)
	err := d.Decode(&all)
	return all[program], err
}

// MutantFlag registers the flag -mutant of a proof program. Its value is the name of a mutant.
func MutantFlag(name *string, program string) {
	flag.StringVar(name, "mutant", "", "build notifyd with this mutant, which breaks one mechanism: "+strings.Join(MutantNames(program), ", "))
}

// MutantNames returns the names of a program's mutants, sorted.
func MutantNames(program string) []string {
	return slices.Sorted(maps.Keys(Must(Mutants(program))))
}

// Notifyd builds notifyd from the working folder into dir and returns the path of the binary. If
// mutant is not empty, the build includes this mutant of the proof program.
func Notifyd(ctx context.Context, dir, program, mutant string) (string, error) {
	if mutant == "" {
		return Build(ctx, ".", dir, nil)
	}
	known, err := Mutants(program)
	if err != nil {
		return "", err
	}
	m, ok := known[mutant]
	if !ok {
		return "", fmt.Errorf("no mutant is called %q; the mutants are %s", mutant, strings.Join(MutantNames(program), ", "))
	}
	return Build(ctx, ".", dir, &m)
}

// NotifydOf builds the notifyd of an older commit into dir. The working folder must be the root of
// the repository. NotifydOf returns the path of the binary.
func NotifydOf(ctx context.Context, dir, commit string) (bin string, err error) {
	err = Try(func() {
		src := filepath.Join(dir, "src")
		Ok(os.MkdirAll(src, 0o700))
		for _, args := range [][]string{{"git", "archive", "-o", filepath.Join(dir, "src.tar"), commit}, {"tar", "-xf", filepath.Join(dir, "src.tar"), "-C", src}} {
			if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
				panic(fmt.Errorf("%s: %w\n%s", args[0], err, out))
			}
		}
		bin = Must(Build(ctx, src, dir, nil))
	})
	return bin, err
}

// Notifyctl builds notifyctl from the working folder into dir and returns the path of the binary.
func Notifyctl(ctx context.Context, dir string) (string, error) {
	bin := filepath.Join(dir, "notifyctl")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/notifyctl").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build notifyctl: %w\n%s", err, out)
	}
	return bin, nil
}

// apply returns the path of the mutant's file and the text of the file after the replacement. It
// does not write the file. It returns an error if the file does not contain Old exactly once, if
// Old and New are equal, or if the changed text is not valid Go.
func (m Mutant) apply(root string) (file, text string, err error) {
	file = filepath.Join(root, m.File)
	src, err := os.ReadFile(file)
	if err != nil {
		return "", "", err
	}
	if n := strings.Count(string(src), m.Old); n != 1 || m.Old == m.New {
		return "", "", fmt.Errorf("the mutant's old text occurs %d times in %s; it must occur once and differ from the new text", n, m.File)
	}
	text = strings.Replace(string(src), m.Old, m.New, 1)
	_, err = parser.ParseFile(token.NewFileSet(), m.File, text, parser.SkipObjectResolution)
	return file, text, err
}

// Build builds notifyd, with fault points, from the repository in the folder root. It writes the
// binary into dir and returns the path of the binary. If m is not nil, the build includes the
// mutant m.
func Build(ctx context.Context, root, dir string, m *Mutant) (bin string, err error) {
	err = Try(func() {
		root := Must(filepath.Abs(root))
		bin = filepath.Join(dir, "notifyd")
		args := []string{"build", "-tags", "faultinject", "-o", bin}
		if m != nil {
			file, text := Must2(m.apply(root))
			changed, list := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
			Ok(os.WriteFile(changed, []byte(text), 0o600))
			overlay := Must(json.Marshal(map[string]any{"Replace": map[string]string{file: changed}}))
			Ok(os.WriteFile(list, overlay, 0o600))
			args = append(args, "-overlay", list)
		}
		c := exec.CommandContext(ctx, "go", append(args, "./cmd/notifyd")...)
		c.Dir = root
		if out, err := c.CombinedOutput(); err != nil {
			panic(fmt.Errorf("build: %w\n%s", err, out))
		}
	})
	return bin, err
}
