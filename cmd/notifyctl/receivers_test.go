package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func TestReadReceivers(t *testing.T) {
	t.Parallel()
	// f reads a file and writes each receiver, or what is wrong, as one word.
	f := func(format, file string, want ...string) {
		t.Helper()
		var got []string
		for r, err := range readReceivers(strings.NewReader(file), "in", format) {
			s := r.UserID
			if r.Address != "" {
				s += "@" + r.Address
			}
			if len(r.Variables) > 0 {
				s += string(r.Variables)
			}
			if err != nil {
				s = "! " + err.Error()
			}
			got = append(got, s)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s %q:\n got %q\nwant %q", format, file, got, want)
		}
	}
	f("lines", "")
	f("lines", "\xef\xbb\xbfann\r\n\n  bob  \ncleo", "ann", "bob", "cleo")
	f("lines", "ann\nb\x01b\n\xff\n"+strings.Repeat("x", 129)+"\nbob",
		"ann", "! in:2: the user id has control characters", "! in:3: is not valid UTF-8", "! in:4: the user id is longer than 128 bytes", "bob")
	f("lines", "ann\n"+strings.Repeat("x", maxLine+1)+"\nbob", "ann", "! in:2: the line is larger than 1 MiB")
	f("ndjson", `{"user_id":"ann","variables":{"n":1}}`+"\n\n"+`{"address":"+4915112345678"}`+"\n"+`"bob"`,
		`ann{"n":1}`, "@+4915112345678", "bob")
	f("ndjson", `{"usr":"ann"}`, "! in:1: field usr is not known; a receiver has user_id, address, variables")
	f("ndjson", `{"user_id":7}`, "! in:1: field user_id has the wrong type")
	f("ndjson", "{}\n[]\n{\"user_id\":\"a\",\"variables\":[]}\n{\"user_id\":\"a\",\"variables\":null}",
		"! in:1: has neither a user_id nor an address", `! in:2: not a JSON object {"user_id","address","variables"}`, "! in:3: variables is not an object", "a")
	f("ndjson", `{"user_id":"a"} {"user_id":"b"}`, `! in:1: not a JSON object {"user_id","address","variables"}`)
	f("csv", "")
	f("csv", "\xef\xbb\xbfuser_id, name ,address\nann,\"A, \"\"B\"\"\",+49151\nbob,,\n",
		`ann@+49151{"name":"A, \"B\""}`, "bob")
	f("csv", "user_id\nann\n\nbob\n", "ann", "bob")
	f("csv", "user_id,name\nann\n,x\n\"two\nlines\",x\nbob,y",
		"! in:2: has 1 fields, but the header has 2", "! in:3: has neither a user_id nor an address", "! in:4: the user id has control characters", `bob{"name":"y"}`)
	f("csv", "user_id,name\nann,\"x\nbob", `! in:3: extraneous or missing " in quoted-field`)
	f("csv", "name\nx", "! in:1: the header has neither user_id nor address")
	f("csv", "user_id,a,a\nx", `! in:1: the header names "a" twice`)
	f("csv", "user_id,\nx", "! in:1: a column of the header has no name")
}

// TestReceiversStop checks that a caller may leave at each receiver and at each
// error, in every format: the reader yields nothing more, and no error in its place.
func TestReceiversStop(t *testing.T) {
	t.Parallel()
	f := func(format, in string, want int) {
		t.Helper()
		for leave := 1; leave <= want; leave++ {
			yielded := 0
			readReceivers(strings.NewReader(in), "in", format)(func(api.Receiver, error) bool {
				yielded++
				return yielded < leave
			})
			if yielded != leave {
				t.Errorf("%s: the caller left at %d, the reader yielded %d", format, leave, yielded)
			}
		}
	}
	f("lines", "ann\nbob\nzoe\n", 3)
	f("ndjson", `{"user_id":"ann"}`+"\n{}\n"+`{"user_id":"zoe"}`, 3)
	f("csv", "user_id,name\nann,a\nbob\nzoe,z\n", 3)
	f("csv", "name\nx", 1)
	f("csv", "user_id,name\nann,\"x\nbob", 1)
}

func TestReceiverFormat(t *testing.T) {
	t.Parallel()
	f := func(asked, name, head, want string) {
		t.Helper()
		got, err := receiverFormat(asked, name, []byte(head))
		if err != nil {
			got = fmt.Sprint("exit ", term.ExitCode(err))
		}
		if got != want {
			t.Errorf("%s %s %q: got %s, want %s", asked, name, head, got, want)
		}
	}
	f("auto", "a.csv", "x", "csv")
	f("auto", "a.JSONL", "x", "ndjson")
	f("auto", "-", "\xef\xbb\xbf\n {\"user_id\":1}", "ndjson")
	f("auto", "-", "user_id,name\nann,x", "csv")
	f("auto", "-", "user_id\r\nann", "csv")
	f("auto", "a.txt", "user_idx\nann", "lines")
	f("auto", "a.txt", "", "lines")
	f("lines", "a.csv", "{", "lines")
	f("xml", "a", "", "exit 2")
}

func BenchmarkReadLines(b *testing.B) {
	file := strings.Repeat("u-0000001\n", 100_000)
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		for range readReceivers(strings.NewReader(file), "in", "lines") {
		}
	}
}
