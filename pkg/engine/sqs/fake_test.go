package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// request is what the SDK sends, as far as these tests look at it.
type request struct {
	action   string
	QueueUrl string
	Entries  []struct {
		Id                string
		MessageBody       string
		DelaySeconds      int
		ReceiptHandle     string
		VisibilityTimeout int
	}
	WaitTimeSeconds int
}

// faked is a queue at a server that answers what a test wants; nil: success of all.
func faked(t *testing.T, cfg Config, answer func(r *request) (status int, body any)) engine.Queue {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		var r request
		if err := json.NewDecoder(hr.Body).Decode(&r); err != nil {
			return // the client gave up: another request of the call had failed
		}
		_, r.action, _ = strings.Cut(hr.Header.Get("X-Amz-Target"), ".")
		status, body := answer(&r)
		if body == nil {
			done := []map[string]string{}
			for _, e := range r.Entries {
				done = append(done, map[string]string{"Id": e.Id, "MessageId": "m", "MD5OfMessageBody": ""})
			}
			status, body = 200, map[string]any{"Successful": done, "Failed": []any{}, "QueueUrl": "http://q.invalid/q"}
		}
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // so it may here
	}))
	t.Cleanup(server.Close)
	cfg.Region, cfg.Endpoint, cfg.CredentialsFile = "eu-central-1", server.URL, credentials(t)
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	s := mustOpen(t, cfg)
	q, err := s.Queue("q", 3)
	must(t, err)
	return q
}

// refused is the answer of SQS with an error code.
func refused(code string) map[string]string {
	return map[string]string{"__type": "com.amazonaws.sqs#" + code, "message": "said by the test"}
}

// md5Of is what SQS answers of a body; the SDK compares it.
func sentAll(r *request, failed ...string) map[string]any {
	out := map[string]any{}
	done, bad := []any{}, []any{}
	for _, e := range r.Entries {
		if slices.Contains(failed, e.Id) {
			bad = append(bad, map[string]any{"Id": e.Id, "Code": "InternalError", "SenderFault": false, "Message": "not now"})
			continue
		}
		done = append(done, map[string]any{"Id": e.Id, "MessageId": "m", "MD5OfMessageBody": md5Of(e.MessageBody)})
	}
	out["Successful"], out["Failed"] = done, bad
	return out
}

func texts(t *testing.T, r *request) (out []string) {
	t.Helper()
	for _, e := range r.Entries {
		b, err := decode(e.MessageBody)
		if err != nil {
			t.Error(err)
		}
		out = append(out, string(b))
	}
	return out
}

func TestWhatFailedOfABatchIsSentAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var sent [][]string
	q := faked(t, Config{}, func(r *request) (int, any) {
		if r.action != "SendMessageBatch" {
			return 0, nil
		}
		mu.Lock()
		defer mu.Unlock()
		if sent = append(sent, texts(t, r)); len(sent) == 1 {
			return 200, sentAll(r, "1", "3")
		}
		return 200, sentAll(r)
	})
	must(t, q.Enqueue(t.Context(), []engine.Message{{Body: []byte("a")}, {Body: []byte("b")}, {Body: []byte("c")}, {Body: []byte("d")}}))
	if want := [][]string{{"a", "b", "c", "d"}, {"b", "d"}}; !slices.EqualFunc(sent, want, slices.Equal) {
		t.Errorf("sent %q, want %q", sent, want)
	}
}

func TestThrottlesAreRetried(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"SendMessageBatch", "DeleteMessageBatch", "ReceiveMessage"} {
		var n atomic.Int32
		q := faked(t, Config{}, func(r *request) (int, any) {
			switch {
			case r.action == action && n.Add(1) <= 4:
				return 400, refused("RequestThrottled")
			case r.action == "SendMessageBatch":
				return 200, sentAll(r)
			case r.action == "ReceiveMessage":
				return 200, map[string]any{"Messages": []any{message("h", "x", 1)}}
			}
			return 0, nil
		})
		must(t, q.Enqueue(t.Context(), []engine.Message{{Body: []byte("a")}}))
		ds, err := q.Receive(t.Context(), 1, time.Minute)
		must(t, err)
		must(t, q.Ack(t.Context(), []string{ds[0].Receipt}))
		if n.Load() < 5 {
			t.Errorf("%s was asked %d times", action, n.Load())
		}
	}
}

// A throttle that does not end is an error when the time of the call is over.
func TestThrottledForGood(t *testing.T) {
	t.Parallel()
	q := faked(t, Config{Timeout: 300 * time.Millisecond}, func(r *request) (int, any) {
		if r.action == "SendMessageBatch" {
			return 200, sentAll(r, "0")
		}
		return 0, nil
	})
	err := q.Enqueue(t.Context(), []engine.Message{{Body: []byte("a")}})
	wantCode(t, err, notify.KindUnavailable, "queue")
}

func TestBatchesLeaveInDueOrder(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var delays []int
	var urls []string
	largest := 0
	q := faked(t, Config{Parallel: 1}, func(r *request) (int, any) {
		if r.action == "GetQueueUrl" {
			return 0, nil
		}
		mu.Lock()
		defer mu.Unlock()
		bytes := 0
		for _, e := range r.Entries {
			delays = append(delays, e.DelaySeconds)
			bytes += len(e.MessageBody)
		}
		largest = max(largest, bytes)
		urls = append(urls, r.QueueUrl)
		return 200, sentAll(r)
	})
	var ms []engine.Message
	for i := range 47 {
		m := engine.Message{Delay: time.Duration(47-i) * time.Second, Body: make([]byte, 100)}
		if i%10 == 0 {
			m.Body = make([]byte, 64<<10)
		}
		ms = append(ms, m)
	}
	must(t, q.Enqueue(t.Context(), ms))
	if len(delays) != 47 || !slices.IsSorted(delays) || len(urls) < 5 || largest > maxRequest {
		t.Errorf("%d messages with delays %v in %d requests, the largest of %d bytes", len(delays), delays, len(urls), largest)
	}
}

func message(handle, body string, receives int) map[string]any {
	text := encode([]byte(body))
	return map[string]any{
		"ReceiptHandle": handle, "Body": text, "MD5OfBody": md5Of(text), "MessageId": handle,
		"Attributes": map[string]string{"ApproximateReceiveCount": strconv.Itoa(receives), "SentTimestamp": strconv.FormatInt(time.Now().UnixMilli(), 10)},
	}
}

// Extend of many messages needs few requests and leaves out receipts that are over.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	var given, beats, changed, deleted atomic.Int32
	q := faked(t, Config{}, func(r *request) (int, any) {
		switch r.action {
		case "ReceiveMessage":
			var out []any
			for range 10 {
				out = append(out, message(fmt.Sprint("h", given.Add(1)), "x", 1))
			}
			return 200, map[string]any{"Messages": out}
		case "ChangeMessageVisibilityBatch":
			beats.Add(1)
			changed.Add(int32(len(r.Entries)))
			for _, e := range r.Entries {
				if e.VisibilityTimeout != 61 {
					t.Errorf("visibility %d, want a minute and what it must outlast", e.VisibilityTimeout)
				}
			}
			bad := []any{map[string]any{"Id": r.Entries[0].Id, "Code": "MessageNotInflight", "SenderFault": true}}
			return 200, map[string]any{"Successful": []any{}, "Failed": bad}
		case "DeleteMessageBatch":
			deleted.Add(int32(len(r.Entries)))
		}
		return 0, nil
	})
	ds, err := q.Receive(t.Context(), 1000, time.Minute)
	must(t, err)
	var rs []string
	for _, d := range ds {
		rs = append(rs, d.Receipt)
	}
	must(t, q.Extend(t.Context(), append(rs, "nonsense"), time.Minute))
	// The two lanes are beaten apart: ten a request but for the last of each.
	if n := beats.Load(); changed.Load() != 1000 || n < 100 || n > 102 {
		t.Errorf("%d receipts in %d requests", changed.Load(), n)
	}
	must(t, q.Ack(t.Context(), rs))
	must(t, q.Ack(t.Context(), rs))                      // are done with
	must(t, q.Extend(t.Context(), rs[:10], time.Minute)) // so are they
	if deleted.Load() != 1000 || changed.Load() != 1000 {
		t.Errorf("%d deleted, %d extended", deleted.Load(), changed.Load())
	}
}

// If the caller has left during a wait, the received messages are released at once.
func TestWhoLeavesGivesBack(t *testing.T) {
	t.Parallel()
	waits, leave, back := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	var once sync.Once
	q := faked(t, Config{}, func(r *request) (int, any) {
		switch {
		case r.action == "ReceiveMessage" && r.WaitTimeSeconds > 0:
			once.Do(func() { close(waits) })
			<-leave
			return 200, map[string]any{"Messages": []any{message("h", "x", 1)}}
		case r.action == "ReceiveMessage":
			return 200, map[string]any{"Messages": []any{}}
		case r.action == "ChangeMessageVisibilityBatch":
			back <- r.Entries[0].VisibilityTimeout
		}
		return 0, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		ds, err := q.Receive(ctx, 10, time.Hour)
		if len(ds) > 0 {
			err = errors.New("it received")
		}
		done <- err
	}()
	<-waits
	cancel()
	must(t, <-done)
	close(leave)
	select {
	case v := <-back:
		if v != 0 {
			t.Errorf("given back in %d s", v)
		}
	case <-time.After(2 * time.Minute):
		t.Error("not given back")
	}
}

func TestOverLimitIsNoError(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	q := faked(t, Config{}, func(r *request) (int, any) {
		if r.action != "ReceiveMessage" {
			return 0, nil
		}
		if n.Add(1) <= 2 {
			return 403, refused("OverLimit")
		}
		return 200, map[string]any{"Messages": []any{message("h", "x", 1)}}
	})
	ds, err := q.Receive(t.Context(), 1, time.Minute)
	must(t, err)
	if len(ds) != 1 {
		t.Errorf("%d deliveries", len(ds))
	}
}

func TestErrorsOfSQS(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{"QueueDoesNotExist": "queue_missing", "AccessDenied": "queue_refused", "InvalidClientTokenId": "queue_refused", "SomethingNew": "queue"} {
		q := faked(t, Config{Timeout: 30 * time.Second}, func(*request) (int, any) { return 400, refused(code) })
		err := q.Enqueue(t.Context(), []engine.Message{{}})
		wantCode(t, err, notify.KindUnavailable, want)
		if strings.Contains(err.Error(), "hidden-word") {
			t.Errorf("error %v", err)
		}
		if _, err = q.Receive(t.Context(), 1, time.Second); notify.KindOf(err) != notify.KindUnavailable {
			t.Errorf("error %v", err)
		}
		if _, err = q.Depth(t.Context()); notify.KindOf(err) != notify.KindUnavailable {
			t.Errorf("error %v", err)
		}
	}
	s := mustOpen(t, Config{Region: "x", Endpoint: "http://127.0.0.1:1", CredentialsFile: credentials(t), Timeout: 300 * time.Millisecond})
	q, err := s.Queue("q", 1)
	must(t, err)
	wantCode(t, q.Enqueue(t.Context(), []engine.Message{{}}), notify.KindUnavailable, "queue")
	for _, f := range s.Doctor(t.Context(), q) {
		if f.Level != "fail" || f.Repair == "" {
			t.Errorf("finding %+v", f)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	t.Setenv("AWS_REGION", "") // not parallel: of the whole process
	for want, cfg := range map[string]Config{
		"sqs.timeout: 1ms is not between":          {Region: "x", Timeout: time.Millisecond},
		"sqs.wait: 21s is not between":             {Region: "x", Wait: 21 * time.Second},
		"sqs.parallel: 65 is not between":          {Region: "x", Parallel: 65},
		"sqs.endpoint: must be an http":            {Region: "x", Endpoint: "127.0.0.1:9324"},
		"sqs.endpoint: http sends":                 {Region: "x", Endpoint: "http://sqs.example"},
		"sqs.credentials_file: the file cannot be": {Region: "x", CredentialsFile: "/nonexistent"},
		"sqs.region: no region is set":             {CredentialsFile: credentials(t)},
	} {
		_, err := Open(t.Context(), cfg)
		if notify.KindOf(err) != notify.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	s := mustOpen(t, Config{Region: "x", Endpoint: "https://sqs.example"})
	if _, err := s.Queue(strings.Repeat("q", 80), 1); notify.KindOf(err) != notify.KindInvalid {
		t.Errorf("error %v", err)
	}
}
