package main

import (
	"archive/tar"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// readable are the kinds of requests that the Kafka port of the embedded log answers.
var readable = map[kmsg.Key]bool{
	kmsg.ApiVersions: true, kmsg.Metadata: true, kmsg.DescribeCluster: true, kmsg.Fetch: true, kmsg.ListOffsets: true, kmsg.OffsetForLeaderEpoch: true,
	kmsg.FindCoordinator: true, kmsg.OffsetFetch: true, kmsg.DescribeGroups: true, kmsg.ListGroups: true, kmsg.DescribeConfigs: true,
}

// kafkaTries send frames to the Kafka port of the embedded log. Some frames once crashed the
// process. Other frames would change the log, or would make the server keep much memory.
func kafkaTries(r *world) {
	frame := func(req kmsg.Request, version int16) []byte {
		req.SetVersion(version)
		return kmsg.NewRequestFormatter(kmsg.FormatterClientID("attack")).AppendRequest(nil, req, 7)
	}
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.TopicNames = []string{"notifications-push"}
	made := kmsg.NewCreateTopicsRequestTopic()
	made.Topic, made.NumPartitions, made.ReplicationFactor = "attack", 1, 1
	create := kmsg.NewPtrCreateTopicsRequest()
	create.Topics = append(create.Topics, made)
	frames := map[string][]byte{
		"14 bytes of an unknown key": []byte("\x00\x00\x00\x0a\x7f\xff\x00\x00\x00\x00\x00\x00\xff\xff"), "delete topics": frame(del, 4), "create topics": frame(create, 4),
		"1 GiB": append([]byte{0x40, 0, 0, 0, 0, 1, 0, 4}, make([]byte, 1<<20)...), "negative length": {0xff, 0xff, 0xff, 0xff}, "no bytes": {0, 0, 0, 0}, "short": {0, 0, 0, 2, 0, 3}, "HTTP": []byte("GET / HTTP/1.1\r\n\r\n"), "TLS": []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
		"damaged": append([]byte{0, 0, 0, 14, 0, 3, 0, 4, 0, 0, 0, 1, 0xff, 0xff}, 0x7f, 0xff, 0xff, 0xff), "unknown version": frame(kmsg.NewPtrMetadataRequest(), 99),
	}
	for k := range int16(100) {
		if req := kmsg.RequestForKey(k); req != nil && !readable[kmsg.Key(k)] {
			frames[kmsg.NameForKey(k)] = frame(req, 0)
			frames[kmsg.NameForKey(k)+", newest"] = frame(req, req.MaxVersion())
		} else if req == nil {
			frames[fmt.Sprintf("key %d", k)] = binary.BigEndian.AppendUint64([]byte{0, 0, 0, 12, byte(k >> 8), byte(k), 0, 0}, 0)
		}
	}
	for name, b := range frames {
		r.try(name, "sends this frame to the Kafka port", "that the server closes the connection without an answer and still runs", func(context.Context) string {
			conn := rig.Must(net.DialTimeout("tcp", kafkaAddr, 5*time.Second))
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(12 * time.Second))
			_, _ = conn.Write(b) // the server may close the connection during the write
			got, err := io.ReadAll(conn)
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				return "the connection stays open"
			}
			if len(got) > 0 {
				return fmt.Sprintf("answered %x", got[:min(len(got), 40)])
			}
			if r.ended() != "" {
				return "the server ended"
			}
			return ""
		})
	}
}

// clientTries start hostile servers. Each server redirects notifyctl to another port. notifyctl
// must not send its token to that port.
func clientTries(r *world) {
	for _, status := range []int{301, 302, 307, 308} {
		r.try(fmt.Sprintf("redirect %d", status), "answers notifyctl with a redirect to another port", "that the token is not sent there", func(ctx context.Context) string {
			got := make(chan string, 16)
			other, stopOther := serveOn("127.0.0.1:0", func(_ http.ResponseWriter, q *http.Request) { got <- q.Header.Get("Authorization") })
			defer stopOther()
			first, stop := serveOn("127.0.0.1:0", func(w http.ResponseWriter, q *http.Request) {
				http.Redirect(w, q, "http://"+other+q.URL.Path, status)
			})
			defer stop()
			token := r.file(fmt.Sprintf("token-%d", status))
			rig.Ok(os.WriteFile(token, []byte(r.keys.token("op", "operate")), 0o600))
			_, _ = r.run(ctx, "notifyctl", "--server", "http://"+first, "--token-file", token, "--timeout", "3s", "caller", "ls")
			select {
			case header := <-got:
				return "notifyctl followed the redirect, with an Authorization header of " + fmt.Sprint(len(header)) + " bytes"
			default:
				return ""
			}
		})
	}
}

// serveOn listens on addr and serves h until the returned function is called. It also returns the
// actual address of the listener.
func serveOn(addr string, h http.HandlerFunc) (actual string, stop func()) {
	ln := rig.Must(net.Listen("tcp", addr))
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = srv.Serve(ln) }()
	return ln.Addr().String(), func() { _ = srv.Close() }
}

// run runs notifyd or notifyctl and returns its output. It returns an error if the program still
// runs after 20 s.
func (r *world) run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	c := rig.DieWithStarter(exec.CommandContext(ctx, filepath.Join(r.bin, name), args...))
	c.Env = append(r.environ(), "NO_PROXY=*")
	out, err := c.CombinedOutput()
	if ctx.Err() != nil {
		return string(out), fmt.Errorf("%s %s still runs after 20 s", name, args[0])
	}
	return string(out), err
}

// startTries run notifyd with unsafe settings. notifyd must refuse to start with each of them.
func startTries(r *world) {
	for _, name := range []string{"open.pem", "open.key"} {
		b := rig.Must(os.ReadFile(r.file("key.pem")))
		if name == "open.key" {
			b = []byte(strings.Repeat("secret", 8))
		}
		rig.Ok(os.WriteFile(r.file(name), b, 0o600))
		rig.Ok(os.Chmod(r.file(name), 0o644))
	}
	rig.Ok(os.WriteFile(r.file("short.key"), []byte("short"), 0o600))
	key := "auth.key_file=" + r.file("key.pem")
	for i, sets := range [][]string{
		{"auth.hs256_file=" + r.file("open.key")}, {"auth.hs256_file=" + r.file("short.key")}, {"auth.key_file=" + r.file("open.pem")}, {"auth.key_file=" + r.file("open.key")}, {"auth.key_file=/dev/null"}, {},
		{key, "auth.hs256_file=" + r.file("sendgrid.key")}, {"auth.jwks_url=http://keys.attack.test/jwks"}, {"auth.jwks_url=file:///etc/passwd"}, {key, "auth.issuer="}, {key, "auth.audience="},
		{key, "api.listen=0.0.0.0:7920"}, {key, "api.listen=10.1.1.1:7920"}, {key, "api.listen=[::]:7920"}, {key, "api.plaintext=yes"}, {key, "log.listen=0.0.0.0:7922"}, {key, "log.listen=10.1.1.1:7922"},
		{key, "providers.sendgrid.key_file=" + r.file("open.key")}, {key, "providers.twilio.accounts_file=" + r.file("open.key")}, {key, "providers.apns.key_file=" + r.file("open.pem")}, {key, "triggers.allow=::ffff:10.0.0.0/104"}, {key, "triggers.allow=everything"},
		{key, "tracing.headers_file=" + r.file("open.key"), "tracing.endpoint=http://127.0.0.1:4318"},
	} {
		r.try(fmt.Sprint(i, " ", strings.ReplaceAll(strings.Join(sets, " "), r.dir+"/", "")), "starts a server with these settings", "that it does not start", func(ctx context.Context) string {
			args := []string{"serve", "--data-dir", r.file(fmt.Sprint("data-start-", i)), "--set", "providers.stub=true", "--set", "api.admin=", "--set", "log.listen=off", "--set", "api.listen=127.0.0.1:7920"}
			if !strings.Contains(strings.Join(sets, " "), "providers.") {
				args = append(args, "--set", "log.listen=off")
			} else {
				args[4] = "providers.stub=false"
			}
			for _, kv := range sets {
				args = append(args, "--set", kv)
			}
			said, err := r.run(ctx, "notifyd", args...)
			if strings.Contains(said, `"msg":"ready"`) || err == nil {
				return "it started: " + said[max(0, len(said)-200):]
			}
			return ""
		})
	}
}

// backupTries run the command restore on hostile backup files. It must refuse to unpack them.
func backupTries(r *world) {
	const bomb = 256 << 20
	sum := strings.Repeat("0", 64)
	manifest := func(files string) string { return `{"format":1,"version":"x\u001b[31m","files":[` + files + `]}` }
	for name, entries := range map[string][]any{
		"no manifest":              {"zeros", bomb},
		"more than listed":         {"manifest.json", manifest(`{"name":"a","size":3,"sha256":"` + sum + `"}`), "a", bomb},
		"not listed":               {"manifest.json", manifest(""), "a", bomb},
		"manifest without end":     {"manifest.json", bomb},
		"way out":                  {"manifest.json", manifest(`{"name":"../out","size":3,"sha256":"` + sum + `"}`), "../out", "abc"},
		"absolute":                 {"manifest.json", manifest(`{"name":"/out","size":3,"sha256":"` + sum + `"}`), "/out", "abc"},
		"larger than the disk":     {"manifest.json", manifest(`{"name":"a","size":2251799813685248,"sha256":"` + sum + `"}`), "a", bomb},
		"negative size":            {"manifest.json", manifest(`{"name":"a","size":-1,"sha256":"` + sum + `"}`), "a", "abc"},
		"manifest that is no JSON": {"manifest.json", "\x1b]52;c;AAAA\x07{"},
	} {
		file := r.file("backup-" + strings.ReplaceAll(name, " ", "-"))
		rig.Ok(os.WriteFile(file, packed(entries), 0o600))
		for _, check := range []bool{false, true} {
			r.try(fmt.Sprint(name, ", check ", check), "restores this backup", "an error without terminal escape sequences, at most 1 MiB in the data folder, and no file outside it", func(ctx context.Context) string {
				to := file + fmt.Sprint("-", check)
				args := []string{"restore", file, "--data-dir", to}
				if check {
					args = []string{"restore", file, "--check"}
				}
				said, err := r.run(ctx, "notifyd", args...)
				switch size := sizeOf(to); {
				case strings.Contains(said, "unknown flag"):
					panic(errors.New(said))
				case err == nil:
					return "it was restored: " + said
				case strings.ContainsRune(said, '\x1b'):
					return fmt.Sprintf("it printed %q", said)
				case size > 1<<20:
					return fmt.Sprint("it left ", size, " bytes")
				}
				if _, err := os.Stat(r.file("out")); err == nil {
					return "it wrote a file outside its folder"
				}
				return ""
			})
		}
	}
}

// packed returns a tar file compressed with zstd. The slice entries has, for each file, its name
// followed by its content. The content is a string, or an int: the number of zero bytes in the
// file.
func packed(entries []any) []byte {
	var b strings.Builder
	z, _ := zstd.NewWriter(&b)
	w := tar.NewWriter(z)
	for i := 0; i < len(entries); i += 2 {
		name, _ := entries[i].(string)
		text, isText := entries[i+1].(string)
		size, _ := entries[i+1].(int)
		if isText {
			size = len(text)
		}
		_ = w.WriteHeader(&tar.Header{Name: name, Size: int64(size), Mode: 0o600, Typeflag: tar.TypeReg})
		if isText {
			_, _ = w.Write([]byte(text))
			continue
		}
		zeros := make([]byte, 1<<20)
		for n := 0; n < size; n += len(zeros) {
			_, _ = w.Write(zeros)
		}
	}
	_ = w.Close()
	_ = z.Close()
	return []byte(b.String())
}

func sizeOf(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}
