package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// Store is the service's own memory, in two files of a folder: what it sent, a
// line each, and its place in the failed feed. A real service has a database.
// Safe for concurrent use.
type Store struct {
	dir string

	mu    sync.Mutex
	texts map[string]string // by notification id
	place uint64
}

type line struct{ ID, Text string }

// OpenStore reads the folder, and makes it when it is missing.
func OpenStore(dir string) (*Store, error) {
	s := &Store{dir: dir, texts: map[string]string{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	sent, err := os.ReadFile(s.file("sent"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for b := range bytes.Lines(sent) {
		var l line
		if json.Unmarshal(b, &l) == nil { // the last line may be half written
			s.texts[l.ID] = l.Text
		}
	}
	place, err := os.ReadFile(s.file("place"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err == nil:
		s.place, err = strconv.ParseUint(string(place), 10, 64)
	}
	return s, err
}

func (s *Store) file(name string) string { return filepath.Join(s.dir, name) }

// Remember keeps what was sent under an id.
func (s *Store) Remember(id, text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := json.Marshal(line{id, text})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.file("sent"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	s.texts[id] = text
	return errors.Join(err, f.Close())
}

// Text returns what was sent under an id.
func (s *Store) Text(id string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, ok := s.texts[id]
	return text, ok
}

// Place returns how far the feed was read.
func (s *Store) Place() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place
}

// Move keeps how far the feed was read.
func (s *Store) Move(place uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if place == s.place {
		return nil
	}
	next := s.file("place.new")
	if err := os.WriteFile(next, []byte(strconv.FormatUint(place, 10)), 0o600); err != nil {
		return err
	}
	s.place = place
	return os.Rename(next, s.file("place"))
}
