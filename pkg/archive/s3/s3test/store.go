// Package s3test is an in-memory object store for tests. It answers the requests of an s3.Bucket in
// the same way as S3.
package s3test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Bucket and Region are the bucket and region that requests must name. Requests must be signed with
// the access key keyID.
const (
	Bucket = "bucket"
	Region = "eu-test-1"
	keyID  = "AKTEST"
)

// Store accepts objects, whole or in parts. It records requests that are not signed with the access
// key keyID, and bodies that differ from their checksums. The zero value is empty. Store is an
// http.Handler and is safe for concurrent use.
type Store struct {
	// Fail returns the status with which the Store refuses a request, or 0 to accept the request.
	// Fail may call the Store's methods. It must be set before the first request. May be nil.
	Fail func(r *http.Request) int

	mu       sync.Mutex
	objects  map[string]Object
	parts    map[string][]byte // by key, upload id and part number
	meta     map[string]http.Header
	took     []string
	problems []string
}

// Object is the content stored under a key, and the header of its request.
type Object struct {
	Data   []byte
	Header http.Header
}

// Credentials writes a credentials file into a folder and returns its name.
func Credentials(dir string) (string, error) {
	name := filepath.Join(dir, "credentials")
	return name, os.WriteFile(name, []byte("[default]\naws_access_key_id = "+keyID+"\naws_secret_access_key = secret\n"), 0o600)
}

// Objects returns the stored objects, by key.
func (s *Store) Objects() map[string]Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.objects)
}

// Put stores an object directly, without a request.
func (s *Store) Put(key string, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(key, o)
}

// Took returns the requests so far. Each text contains the method of a request and the names of its
// query parameters.
func (s *Store) Took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.took)
}

// Problems returns the errors in the requests so far.
func (s *Store) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}

func (s *Store) put(key string, o Object) {
	if s.objects == nil {
		s.objects = map[string]Object{}
	}
	s.objects[key] = o
}

func (s *Store) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// ServeHTTP implements http.Handler.
func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	status := 0
	if s.Fail != nil {
		status = s.Fail(r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.problem("%s %s: %v", r.Method, r.URL, err)
	}
	if auth := r.Header.Get("Authorization"); !strings.HasPrefix(auth, "AWS4-HMAC-SHA256 Credential="+keyID+"/") || !strings.Contains(auth, "/"+Region+"/s3/aws4_request") {
		s.problem("%s %s is signed %q", r.Method, r.URL, auth)
	}
	if sum := sha256.Sum256(body); r.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(sum[:]) {
		s.problem("%s %s: the body is not what was signed: %s", r.Method, r.URL, r.Header.Get("X-Amz-Content-Sha256"))
	}
	q := r.URL.Query()
	s.took = append(s.took, r.Method+" "+strings.Join(slices.Sorted(maps.Keys(q)), "+"))
	if status != 0 {
		refuse(w, status)
		return
	}
	key := strings.TrimPrefix(r.URL.Path, "/"+Bucket+"/")
	o, there := s.objects[key]
	switch {
	case r.Method == http.MethodHead && !there:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodHead:
		for name, v := range o.Header {
			if strings.HasPrefix(name, "X-Amz-Meta-") {
				w.Header()[name] = v
			}
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(o.Data)))
	case r.Method == http.MethodGet && q.Has("list-type"):
		s.list(w, q.Get("prefix"), q.Get("continuation-token"))
	case r.Method == http.MethodGet && !there:
		refuse(w, http.StatusNotFound)
	case r.Method == http.MethodGet:
		_, _ = w.Write(o.Data) // if the caller is gone, the error does not matter
	case there && r.Header.Get("If-None-Match") == "*":
		refuse(w, http.StatusPreconditionFailed)
	case r.Method == http.MethodPost && q.Has("uploads"):
		if s.meta == nil {
			s.meta, s.parts = map[string]http.Header{}, map[string][]byte{}
		}
		s.meta[key] = r.Header
		fmt.Fprintf(w, `<InitiateMultipartUploadResult><Bucket>%s</Bucket><Key>%s</Key><UploadId>u1</UploadId></InitiateMultipartUploadResult>`, Bucket, key)
	case r.Method == http.MethodPut && q.Has("partNumber"):
		s.parts[key+q.Get("uploadId")+"/"+q.Get("partNumber")] = body
		w.Header().Set("ETag", `"`+q.Get("partNumber")+`"`)
	case r.Method == http.MethodPost:
		var done struct {
			Part []struct{ PartNumber string }
		}
		if err := xml.Unmarshal(body, &done); err != nil {
			s.problem("%s %s: %v", r.Method, r.URL, err)
		}
		var all []byte
		for _, p := range done.Part {
			all = append(all, s.parts[key+q.Get("uploadId")+"/"+p.PartNumber]...)
		}
		s.put(key, Object{all, s.meta[key]})
		fmt.Fprintf(w, `<CompleteMultipartUploadResult><Key>%s</Key></CompleteMultipartUploadResult>`, key)
	case r.Method == http.MethodDelete:
		clear(s.parts)
		w.WriteHeader(http.StatusNoContent)
	default:
		s.put(key, Object{body, r.Header})
	}
}

// list answers with the keys that begin with the prefix and are greater than afterKey, two keys per
// page.
func (s *Store) list(w http.ResponseWriter, prefix, afterKey string) {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasPrefix(key, prefix) && key > afterKey {
			keys = append(keys, key)
		}
	}
	fmt.Fprintf(w, `<ListBucketResult><IsTruncated>%v</IsTruncated>`, len(keys) > 2)
	for _, key := range keys[:min(len(keys), 2)] {
		fmt.Fprintf(w, `<Contents><Key>%s</Key></Contents><NextContinuationToken>%s</NextContinuationToken>`, key, key)
	}
	fmt.Fprint(w, `</ListBucketResult>`)
}

func refuse(w http.ResponseWriter, status int) {
	w.WriteHeader(status)
	fmt.Fprint(w, `<Error><Code>Refused</Code><Message>refused</Message></Error>`)
}
