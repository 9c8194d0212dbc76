package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/api"
)

// fakeFanout answers fan-outs, and remembers whom each part had.
type fakeFanout struct {
	mu    sync.Mutex
	parts map[uint32][]string
	posts int
	on    func(posts int) // told of each, before it is answered
	fail  func(part uint32) bool
}

func (s *fakeFanout) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var f api.Fanout
	if err := json.NewDecoder(r.Body).Decode(&f); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil && s.fail(f.Part) {
		w.WriteHeader(http.StatusConflict)
		fmt.Fprint(w, `{"code":"campaign_cancelled","title":"cancelled"}`)
		return
	}
	if s.parts == nil {
		s.parts = map[uint32][]string{}
	}
	s.posts++
	if s.parts[f.Part] != nil {
		http.Error(w, "sent twice", http.StatusTeapot)
		return
	}
	for _, rcv := range f.Receivers {
		s.parts[f.Part] = append(s.parts[f.Part], rcv.UserID)
	}
	if s.on != nil {
		s.on(s.posts)
	}
	fmt.Fprintf(w, `{"first_id":"x","accepted":%d,"rejected_count":0,"rejected":[]}`, len(f.Receivers))
}

func (s *fakeFanout) users() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for part := range uint32(len(s.parts)) {
		all = append(all, s.parts[part]...)
	}
	return all
}

func userFile(t *testing.T, n int) (path string, users []string) {
	t.Helper()
	for i := range n {
		users = append(users, fmt.Sprintf("u%d", i))
	}
	path = filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, []byte(strings.Join(users, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, users
}

// TestFanoutGoesOn stops a fan-out after some parts and runs the command it
// printed: every receiver is sent once, in the parts they were in.
func TestFanoutGoesOn(t *testing.T) {
	t.Parallel()
	for _, stopAfter := range []int{1, 3, 9} {
		t.Run(fmt.Sprint(stopAfter), func(t *testing.T) {
			t.Parallel()
			file, users := userFile(t, 95)
			s := &fakeFanout{}
			var h atomic.Value // http.HandlerFunc
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.Load().(http.HandlerFunc)(w, r) }))
			defer srv.Close()
			w := newWorld(t, srv.URL)
			ctx, stop := context.WithCancelCause(t.Context())
			h.Store(stopAt(stopAfter, s, stop))
			out, errs, code := w.ctl(ctx, "send", "--channel", "push", "--title", "x", "--fanout", file, "--part-size", "10", "--in-flight", "1")
			if code != 130 || out != "" {
				t.Fatalf("code %d, %s%s", code, out, errs)
			}
			if want := fmt.Sprintf("error: interrupted: %d of 95 receivers are stored", stopAfter*10); !strings.Contains(errs, want) {
				t.Errorf("got %s, want %s", errs, want)
			}
			_, command, ok := strings.Cut(errs, "next:  notifyctl ")
			if !ok {
				t.Fatalf("no command to go on in %s", errs)
			}
			h.Store(http.HandlerFunc(s.ServeHTTP))
			out, errs, code = w.ctl(t.Context(), append(strings.Fields(command), "-o", "json")...)
			if code != 0 {
				t.Fatalf("code %d, %s%s", code, out, errs)
			}
			if got := s.users(); !slices.Equal(got, users) {
				t.Errorf("got %v", got)
			}
			var res fanoutResult
			if err := json.Unmarshal([]byte(out), &res); err != nil {
				t.Fatal(err)
			}
			if res.Parts != 10 || res.SkippedParts != stopAfter || res.Receivers != 95 || res.Accepted != 95 {
				t.Errorf("%+v", res)
			}
			posts := s.posts
			if _, errs, code = w.ctl(t.Context(), strings.Fields(command)...); code != 0 || s.posts != posts {
				t.Errorf("a third run: code %d, %d posts more, %s", code, s.posts-posts, errs)
			}
		})
	}
}

// stopAt passes n parts on, and stops the run at the next one without
// storing it.
func stopAt(n int, s *fakeFanout, stop context.CancelCauseFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		posts := s.posts
		s.mu.Unlock()
		if posts < n {
			s.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that the client leaves
		stop(&signalStop{os.Interrupt, 130})
		<-r.Context().Done()
	}
}

// TestFanoutRefused checks that what the server refuses ends the sending with
// its code, and with the way to go on.
func TestFanoutRefused(t *testing.T) {
	t.Parallel()
	file, _ := userFile(t, 30)
	s := &fakeFanout{fail: func(part uint32) bool { return part == 1 }}
	srv := httptest.NewServer(s)
	defer srv.Close()
	w := newWorld(t, srv.URL)
	_, errs, code := w.ctl(t.Context(), "send", "--channel", "push", "--title", "x", "--fanout", file, "--part-size", "10", "--in-flight", "1")
	if code != 6 || !strings.Contains(errs, "campaign_cancelled") || !strings.Contains(errs, "send --campaign cmp_") {
		t.Errorf("code %d, %s", code, errs)
	}
}

// TestFanoutFromStream checks that a bad line of a stream stops it there, named.
func TestFanoutFromStream(t *testing.T) {
	t.Parallel()
	s := &fakeFanout{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	w := newWorld(t, srv.URL)
	w.in = "a\nb\nc\n\x01\n"
	_, errs, code := w.ctl(t.Context(), "send", "--channel", "push", "--title", "x", "--fanout", "-", "--part-size", "2", "--in-flight", "1")
	if code != 2 || !strings.Contains(errs, "-:4: the user id has control characters") || !strings.Contains(errs, "(with the same input)") {
		t.Errorf("code %d, %s", code, errs)
	}
	if got := s.users(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("sent %v", got)
	}
}

// TestCampaignStateParts holds the ranges of parts against a set.
func TestCampaignStateParts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, model := &campaignState{}, map[uint32]bool{}
		for _, part := range rapid.SliceOf(rapid.Uint32Range(0, 30)).Draw(t, "parts") {
			s.markPartDone(part)
			model[part] = true
			for i := range uint32(32) {
				if s.isPartDone(i) != model[i] {
					t.Fatalf("has(%d) is %v: %d and %v", i, s.isPartDone(i), s.Next, s.Ahead)
				}
			}
			if slices.Contains(s.Ahead, s.Next) {
				t.Fatalf("%d is done and kept ahead: %v", s.Next, s.Ahead)
			}
		}
		if s.partsDone() != len(model) {
			t.Fatalf("%d parts, want %d", s.partsDone(), len(model))
		}
	})
}
