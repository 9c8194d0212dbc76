package s3

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
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
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is what S3 does with the requests of a Bucket: objects put whole or in
// parts. It checks that each is signed with the key, and that bodies are what
// their checksums say.
type store struct {
	t       *testing.T
	mu      sync.Mutex
	objects map[string]object
	parts   map[string][]byte // by upload and number
	meta    map[string]http.Header
	fail    func(r *http.Request) int // the status to answer instead; 0: none
	took    []string
}

type object struct {
	data []byte
	meta http.Header
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if auth := r.Header.Get("Authorization"); !strings.HasPrefix(auth, "AWS4-HMAC-SHA256 Credential=AKTEST/") || !strings.Contains(auth, "/eu-test-1/s3/aws4_request") {
		s.t.Errorf("%s %s is signed %q", r.Method, r.URL, auth)
	}
	if sum := sha256.Sum256(body); r.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(sum[:]) {
		s.t.Errorf("%s %s: the body is not what was signed: %s", r.Method, r.URL, r.Header.Get("X-Amz-Content-Sha256"))
	}
	q := r.URL.Query()
	s.took = append(s.took, r.Method+" "+strings.Join(slices.Sorted(maps.Keys(q)), "+"))
	if s.fail != nil {
		if status := s.fail(r); status != 0 {
			w.WriteHeader(status)
			fmt.Fprint(w, `<Error><Code>Injected</Code><Message>injected</Message></Error>`)
			return
		}
	}
	key := strings.TrimPrefix(r.URL.Path, "/bucket/")
	switch o, there := s.objects[key]; {
	case r.Method == http.MethodHead && !there:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodHead:
		for name, v := range o.meta {
			if strings.HasPrefix(name, "X-Amz-Meta-") {
				w.Header()[name] = v
			}
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(o.data)))
	case r.Method == http.MethodPost && q.Has("uploads"):
		s.meta[key] = r.Header
		fmt.Fprintf(w, `<InitiateMultipartUploadResult><Bucket>bucket</Bucket><Key>%s</Key><UploadId>u1</UploadId></InitiateMultipartUploadResult>`, key)
	case r.Method == http.MethodPut && q.Has("partNumber"):
		s.parts[key+q.Get("uploadId")+"/"+q.Get("partNumber")] = body
		w.Header().Set("ETag", `"`+q.Get("partNumber")+`"`)
	case r.Method == http.MethodPost:
		var done struct {
			Part []struct{ PartNumber string }
		}
		if err := xml.Unmarshal(body, &done); err != nil {
			s.t.Error(err)
		}
		var all []byte
		for _, p := range done.Part {
			all = append(all, s.parts[key+q.Get("uploadId")+"/"+p.PartNumber]...)
		}
		s.objects[key] = object{all, s.meta[key]}
		fmt.Fprintf(w, `<CompleteMultipartUploadResult><Key>%s</Key></CompleteMultipartUploadResult>`, key)
	case r.Method == http.MethodDelete:
		clear(s.parts)
		w.WriteHeader(http.StatusNoContent)
	default:
		s.objects[key] = object{body, r.Header}
	}
}

func open(t *testing.T, s *store) *Bucket {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	s.t, s.objects, s.parts, s.meta = t, map[string]object{}, map[string][]byte{}, map[string]http.Header{}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	cred := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(cred, []byte("[default]\naws_access_key_id = AKTEST\naws_secret_access_key = secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := New(t.Context(), Config{
		Bucket: "bucket", Prefix: "notifyd/a", Region: "eu-test-1", Endpoint: srv.URL, PathStyle: true, Credentials: cred,
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
			s := &store{}
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
			o, ok := s.objects["notifyd/a/outcomes/2026-11-22/04-1.ndjson.zst"]
			if got := sha256.Sum256(o.data); !ok || hex.EncodeToString(got[:]) != sum || o.meta.Get("X-Amz-Meta-Sha256") != sum {
				t.Errorf("%d of %d bytes under %v, %v", len(o.data), size, slices.Collect(maps.Keys(s.objects)), o.meta)
			}
			if last := s.took[len(s.took)-1]; last != "HEAD " {
				t.Errorf("the second time it was stored again: %v", s.took)
			}
		})
	}
}

// What is there already stays.
func TestTaken(t *testing.T) {
	s := &store{}
	b := open(t, s)
	one, oneSum := file(t, []byte("one"))
	two, twoSum := file(t, []byte("two"))
	if err := b.Put(t.Context(), "x", one, oneSum); err != nil {
		t.Fatal(err)
	}
	s.objects["notifyd/a/y"] = object{data: []byte("stored by hand")}
	for _, name := range []string{"x", "y"} {
		if err := b.Put(t.Context(), name, two, twoSum); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if string(s.objects["notifyd/a/x"].data) != "one" || string(s.objects["notifyd/a/y"].data) != "stored by hand" {
		t.Errorf("%q", s.objects)
	}
}

// A refusal is an error that names the object, and never taken for its absence.
func TestRefused(t *testing.T) {
	for method, want := range map[string]string{
		http.MethodHead: "looking for notifyd/a/x in bucket",
		http.MethodPut:  "storing notifyd/a/x in bucket",
	} {
		t.Run(method, func(t *testing.T) {
			s := &store{fail: func(r *http.Request) int {
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
			if len(s.objects) > 0 {
				t.Error("it was stored")
			}
		})
	}
}

// A store that is overloaded for a moment is asked again.
func TestSlowDown(t *testing.T) {
	n := 0
	s := &store{fail: func(*http.Request) int {
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
	if string(s.objects["notifyd/a/x"].data) != "x" {
		t.Errorf("%q", s.objects)
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
