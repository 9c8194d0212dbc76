package s3

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/archive/s3/s3test"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a bucket in a store. At the end the store's requests must have been sound.
func open(t *testing.T, s *s3test.Store) *Bucket {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	srv := httptest.NewServer(s)
	t.Cleanup(func() {
		srv.Close()
		for _, p := range s.Problems() {
			t.Error(p)
		}
	})
	cred, err := s3test.Credentials(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(t.Context(), Config{
		Bucket: s3test.Bucket, Prefix: "notifyd/a", Region: s3test.Region, Endpoint: srv.URL, PathStyle: true, Credentials: cred,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func file(t *testing.T, data []byte) (name, sum string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	x := sha256.Sum256(data)
	return name, hex.EncodeToString(x[:])
}

// A file is stored once, whole or in parts, with its sum.
func TestPut(t *testing.T) {
	for _, size := range []int{0, 1000, 40 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			s := &s3test.Store{}
			b := open(t, s)
			data := make([]byte, size)
			for i := range data {
				data[i] = byte(i >> 12)
			}
			name, sum := file(t, data)
			for range 2 {
				if err := b.Put(t.Context(), "outcomes/2026-11-22/04-1.ndjson.zst", name, sum); err != nil {
					t.Fatal(err)
				}
			}
			all, took := s.Objects(), s.Took()
			o, ok := all["notifyd/a/outcomes/2026-11-22/04-1.ndjson.zst"]
			if got := sha256.Sum256(o.Data); !ok || hex.EncodeToString(got[:]) != sum || o.Header.Get("X-Amz-Meta-Sha256") != sum {
				t.Errorf("%d of %d bytes under %v, %v", len(o.Data), size, slices.Collect(maps.Keys(all)), o.Header)
			}
			if last := took[len(took)-1]; last != "HEAD " {
				t.Errorf("the second time it was stored again: %v", took)
			}
		})
	}
}

// An object that exists already stays.
func TestTaken(t *testing.T) {
	s := &s3test.Store{}
	b := open(t, s)
	one, oneSum := file(t, []byte("one"))
	two, twoSum := file(t, []byte("two"))
	if err := b.Put(t.Context(), "x", one, oneSum); err != nil {
		t.Fatal(err)
	}
	s.Put("notifyd/a/y", s3test.Object{Data: []byte("stored by hand")})
	for _, name := range []string{"x", "y"} {
		if err := b.Put(t.Context(), name, two, twoSum); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", name, err)
		}
		if there, err := b.Has(t.Context(), name, twoSum); there || err != nil {
			t.Errorf("%s is there as it is not: %v", name, err)
		}
	}
	if there, err := b.Has(t.Context(), "x", oneSum); !there || err != nil {
		t.Errorf("x is not there: %v", err)
	}
	if all := s.Objects(); string(all["notifyd/a/x"].Data) != "one" || string(all["notifyd/a/y"].Data) != "stored by hand" {
		t.Errorf("%q", all)
	}
}

// Two processes store files of one name at the same time. One succeeds and the other gets an
// error. Each finds the name free first, for a whole upload and for one in parts.
func TestTwoAtATime(t *testing.T) {
	for _, size := range []int{100, 40 << 20} {
		for _, same := range []bool{false, true} {
			t.Run(fmt.Sprint(size, same), func(t *testing.T) {
				s := &s3test.Store{}
				b := open(t, s)
				file1, sum1 := file(t, make([]byte, size))
				data2 := make([]byte, size)
				if !same {
					data2[0] = 1
				}
				file2, sum2 := file(t, data2)
				other := s3test.Object{Data: data2, Header: http.Header{"X-Amz-Meta-Sha256": {sum2}}}
				var once sync.Once
				s.Fail = func(r *http.Request) int {
					if r.Method != http.MethodHead { // this one has looked, and the other one is faster
						once.Do(func() { s.Put("notifyd/a/x", other) })
					}
					return 0
				}
				err := b.Put(t.Context(), "x", file1, sum1)
				if same && err != nil || !same && !errors.Is(err, fs.ErrExist) {
					t.Errorf("%v", err)
				}
				if err := b.Put(t.Context(), "x", file2, sum2); err != nil {
					t.Errorf("what is there: %v", err)
				}
			})
		}
	}
}

// A store that does not know the condition is asked without it.
func TestStoreWithoutConditions(t *testing.T) {
	s := &s3test.Store{Fail: func(r *http.Request) int {
		if r.Header.Get("If-None-Match") != "" {
			return http.StatusNotImplemented
		}
		return 0
	}}
	b := open(t, s)
	name, sum := file(t, []byte("x"))
	if err := b.Put(t.Context(), "x", name, sum); err != nil {
		t.Fatal(err)
	}
	if got := s.Objects()["notifyd/a/x"].Data; string(got) != "x" {
		t.Errorf("%q", got)
	}
}

// A refusal is an error that names the object, and never taken for its absence.
func TestRefused(t *testing.T) {
	for method, want := range map[string]string{
		http.MethodHead: "looking for notifyd/a/x in the bucket bucket",
		http.MethodPut:  "storing notifyd/a/x in the bucket bucket",
	} {
		t.Run(method, func(t *testing.T) {
			s := &s3test.Store{Fail: func(r *http.Request) int {
				if r.Method == method {
					return http.StatusForbidden
				}
				return 0
			}}
			b := open(t, s)
			name, sum := file(t, []byte("x"))
			if err := b.Put(t.Context(), "x", name, sum); err == nil || errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v", err)
			}
			if len(s.Objects()) > 0 {
				t.Error("it was stored")
			}
		})
	}
}

// A store that is overloaded for a moment is asked again.
func TestSlowDown(t *testing.T) {
	n := 0
	s := &s3test.Store{Fail: func(*http.Request) int {
		if n++; n%2 == 1 {
			return http.StatusServiceUnavailable
		}
		return 0
	}}
	b := open(t, s)
	name, sum := file(t, []byte("x"))
	if err := b.Put(t.Context(), "x", name, sum); err != nil {
		t.Fatal(err)
	}
	if got := s.Objects()["notifyd/a/x"].Data; string(got) != "x" {
		t.Errorf("%q", got)
	}
}

func TestConfig(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	for _, cfg := range []Config{
		{},
		{Bucket: "b"}, // no region
		{Bucket: "b", Region: "eu-test-1", Credentials: filepath.Join(t.TempDir(), "none")},
	} {
		if _, err := New(t.Context(), cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

// Copy writes the objects in the given range to files, from all pages of the list, and writes
// nothing outside the folder.
func TestCopy(t *testing.T) {
	var s s3test.Store
	b := open(t, &s)
	for _, key := range []string{"outcomes/2026-11-20/1.json", "outcomes/2026-11-21/2.json", "outcomes/2026-11-21/3.json", "outcomes/2026-11-22/4.json", "dead-letters/2026-11-22/5.json"} {
		s.Put("notifyd/a/"+key, s3test.Object{Data: []byte(key)})
	}
	s.Put("notifyd/ab/outcomes/2026-11-22/6.json", s3test.Object{})
	dir := t.TempDir()
	if err := b.Copy(t.Context(), "outcomes/", "outcomes/2026-11-21", dir); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*", "*", "*"))
	if err != nil || len(names) != 3 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		want, err := filepath.Rel(dir, name)
		if got, readErr := os.ReadFile(name); string(got) != want || err != nil || readErr != nil {
			t.Errorf("%s holds %q, %v, %v", name, got, err, readErr)
		}
	}
	s.Put("notifyd/a/outcomes/x/../../../../out.json", s3test.Object{})
	if err := b.Copy(t.Context(), "outcomes/", "outcomes/x", dir); err == nil {
		t.Error("a key led out of the folder")
	}
}
