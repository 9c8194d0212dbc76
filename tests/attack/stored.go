package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// storedTry searches the stored files for secrets, as an attacker with a copy of the disk would.
func (r *world) storedTry() {
	r.try("stored", "looks for the callers' signing secrets in every file of the data folder, and in the logs", "that none is there, with the prefix whsec_ or without", func(context.Context) string {
		r.mu.Lock()
		signing := append([]string(nil), r.signing...)
		s := search{parts: map[string]string{}, names: map[string]bool{}}
		for _, name := range r.named {
			s.parts[name], s.names[name] = name, true
		}
		r.mu.Unlock()
		for _, secret := range signing {
			body, ok := strings.CutPrefix(secret, "whsec_")
			if !ok || len(body) < partLen {
				panic(fmt.Errorf("a signing secret must begin with whsec_ and have %d more bytes or more; a caller got one of %d bytes", partLen, len(secret)))
			}
			s.parts[body[:partLen]] = body
		}
		for _, dir := range []string{"data", "data-jwks"} {
			rig.Ok(filepath.WalkDir(r.file(dir), s.look))
		}
		for _, p := range r.procs {
			rig.Ok(s.file(p.log))
		}
		switch {
		case len(s.found) > 0:
			return fmt.Sprintf("found a signing secret %d times, first in %s", len(s.found), s.found[0])
		case len(signing) == 0:
			panic(errors.New("no caller has a signing secret"))
		case !s.named:
			panic(errors.New("the search found no caller's name in the files, so it would not find a secret either"))
		}
		return ""
	})
}

// partLen is the length in bytes of the part that search looks for: the first bytes of each text.
// If search finds a part, it compares the whole text.
const partLen = 16

// search looks for many texts in a file in one pass.
type search struct {
	parts map[string]string // each text, by its first partLen bytes
	found []string          // the files that contain a secret, once per match
	// names are random texts at the ends of the callers' names. The search must find some of them;
	// otherwise it proves nothing. They are random because compression leaves a random text
	// unchanged.
	names map[string]bool
	named bool // true once the search has found one of names
}

func (s *search) look(path string, d fs.DirEntry, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed since the folder was listed
	}
	if err != nil || !d.Type().IsRegular() {
		return err
	}
	return s.file(path)
}

func (s *search) file(path string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for i := 0; i+partLen <= len(b); i++ {
		if text, ok := s.parts[string(b[i:i+partLen])]; ok && bytes.HasPrefix(b[i:], []byte(text)) {
			if s.names[text] {
				s.named = true
			} else {
				s.found = append(s.found, path)
			}
		}
	}
	return err
}
