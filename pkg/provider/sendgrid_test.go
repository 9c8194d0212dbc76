package provider

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

func mailbox(i int) string { return fmt.Sprintf("user%d@example.com", i) }

// sentMail is the shape of a Mail Send request.
type sentMail struct {
	Personalizations []struct {
		To            []struct{ Email string }
		Subject       string
		Substitutions map[string]string
		Data          map[string]any            `json:"dynamic_template_data"`
		Args          struct{ Ntf, Ref string } `json:"custom_args"`
	}
	From       struct{ Email, Name string }
	Subject    string
	Content    []struct{ Type, Value string }
	Template   string   `json:"template_id"`
	Pool       string   `json:"ip_pool_name"`
	Categories []string `json:"categories"`
}

type sendGridServer struct {
	t     testing.TB
	mu    sync.Mutex
	mails []sentMail
	reply func(m *sentMail) (status int, body string, header http.Header)
}

func (s *sendGridServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer SG.key" {
		w.WriteHeader(401)
		return
	}
	var m sentMail
	z, err := gzip.NewReader(r.Body)
	if err == nil {
		d := json.NewDecoder(z)
		d.DisallowUnknownFields()
		err = d.Decode(&m)
	}
	if err != nil {
		s.t.Error(err)
		w.WriteHeader(400)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mails = append(s.mails, m)
	if s.reply != nil {
		if status, body, h := s.reply(&m); status != 0 {
			for k, v := range h {
				w.Header()[k] = v
			}
			w.WriteHeader(status)
			io.WriteString(w, body)
			return
		}
	}
	w.Header().Set("X-Message-Id", "msg"+strconv.Itoa(len(s.mails)))
	w.WriteHeader(202)
}

func testSendGrid(t testing.TB, change func(*sendGridServer, *SendGridConfig)) (*SendGrid, *sendGridServer) {
	t.Helper()
	s := &sendGridServer{t: t}
	_, e := tlsServer(t, s, nil)
	cfg := SendGridConfig{Endpoint: e, APIKey: "SG.key", From: "Shop <shop@example.com>", Rate: 1e6}
	if change != nil {
		change(s, &cfg)
	}
	sg, err := NewSendGrid(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, sg)
	return sg, s
}

func TestSendGridRequest(t *testing.T) {
	t.Parallel()
	sg, s := testSendGrid(t, func(_ *sendGridServer, c *SendGridConfig) {
		c.Pools = []string{"ip1"}
	})
	call := testCall(notify.Email, notify.Content{Title: "Hi {{name}}", Body: "Dear {{name}}, {{code}}", HTML: "<p>{{name}}</p>",
		Variables: []byte(`{"code":7}`)}, 3, mailbox)
	call.Items[0].Variables = []byte(`{"name":"<Ann>"}`)
	call.Items[1].Variables = []byte(`{"name":"Bob","code":"x"}`)
	rs := collect(t, t.Context(), sg, call)
	for i, r := range rs[:2] {
		if r.Class != notify.ClassAccepted || r.Confirmed || r.ProviderID != "msg1" || r.Provider != "sendgrid:ip1" {
			t.Errorf("%d: %+v", i, r)
		}
	}
	if rs[2].Class != notify.ClassPermanent || rs[2].Code != "missing_variable" {
		t.Errorf("%+v", rs[2])
	}
	if len(s.mails) != 1 {
		t.Fatalf("%d requests", len(s.mails))
	}
	m := s.mails[0]
	if m.From.Email != "shop@example.com" || m.From.Name != "Shop" || m.Pool != "ip1" ||
		m.Subject != "" || m.Template != "" || len(m.Content) != 2 || m.Content[0].Type != "text/plain" || m.Content[1].Type != "text/html" ||
		fmt.Sprint(m.Categories) != "[transactional]" {
		t.Errorf("%+v", m)
	}
	for i, want := range [][3]string{
		{"Hi <Ann>", "Dear <Ann>, 7", "<p>&lt;Ann&gt;</p>"},
		{"Hi Bob", "Dear Bob, x", "<p>Bob</p>"},
	} {
		p := m.Personalizations[i]
		text, html := m.Content[0].Value, m.Content[1].Value
		for tag, v := range p.Substitutions {
			text, html = strings.ReplaceAll(text, tag, v), strings.ReplaceAll(html, tag, v)
		}
		if p.Subject != want[0] || text != want[1] || html != want[2] {
			t.Errorf("%d: %q %q %q", i, p.Subject, text, html)
		}
		ref, err := DecodeRef(p.Args.Ref)
		if err != nil || ref != RefOf(&call.Items[i]) || p.Args.Ntf != call.Items[i].ID().String() || len(p.To) != 1 || p.To[0].Email != mailbox(i) {
			t.Errorf("%d: %+v", i, p)
		}
	}
}

func TestSendGridTemplate(t *testing.T) {
	t.Parallel()
	sg, s := testSendGrid(t, nil)
	call := testCall(notify.Email, notify.Content{Template: "d-1", From: "a@b.example", Variables: []byte(`{"items":[1,{"x":null}],"n":1}`)}, 1, mailbox)
	call.Items[0].Variables = []byte(`{"n":2}`)
	if r := collect(t, t.Context(), sg, call)[0]; r.Class != notify.ClassAccepted {
		t.Fatalf("%+v", r)
	}
	m := s.mails[0]
	if m.Template != "d-1" || m.Content != nil || m.From.Email != "a@b.example" || m.Pool != "" || fmt.Sprint(m.Personalizations[0].Data) != "map[items:[1 map[x:<nil>]] n:2]" {
		t.Errorf("%+v", m)
	}
	f := func(c notify.Content, code string) {
		t.Helper()
		if r := collect(t, t.Context(), sg, testCall(notify.Email, c, 1, mailbox))[0]; r.Class != notify.ClassPermanent || r.Code != code {
			t.Errorf("%+v", r)
		}
	}
	f(notify.Content{Title: "t"}, "empty_content")
	f(notify.Content{Body: "b", From: "nobody"}, "bad_from")
	f(notify.Content{Body: "b", Variables: []byte("[]")}, "bad_variables")
}

// A request has at most 1,000 receivers and no address twice.
func TestSendGridBatches(t *testing.T) {
	t.Parallel()
	sg, s := testSendGrid(t, nil)
	call := testCall(notify.Email, notify.Content{Title: "t", Body: "b"}, 2500, func(i int) string {
		if i%500 == 0 {
			return []string{"Same@example.com", "same@Example.com"}[i/500%2]
		}
		return mailbox(i)
	})
	for i, r := range collect(t, t.Context(), sg, call) {
		if r.Class != notify.ClassAccepted {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	total, ids := 0, map[string]bool{}
	for _, m := range s.mails {
		seen := map[string]bool{}
		for _, p := range m.Personalizations {
			a := strings.ToLower(p.To[0].Email)
			if seen[a] {
				t.Errorf("%s twice in a request", a)
			}
			seen[a], ids[p.Args.Ntf] = true, true
			total++
		}
		if len(m.Personalizations) > 1000 {
			t.Errorf("%d receivers", len(m.Personalizations))
		}
	}
	if total != 2500 || len(ids) != 2500 || len(s.mails) != 5 {
		t.Errorf("%d receivers, %d ids in %d requests", total, len(ids), len(s.mails))
	}
}

// A 400 that names no receiver is narrowed down by halving. Only the bad receiver fails.
func TestSendGridBisect(t *testing.T) {
	t.Parallel()
	bad := map[string]bool{mailbox(17): true, mailbox(18): true, mailbox(999): true}
	accepted := map[string]int{}
	sg, s := testSendGrid(t, func(s *sendGridServer, _ *SendGridConfig) {
		s.reply = func(m *sentMail) (int, string, http.Header) {
			for _, p := range m.Personalizations {
				if bad[p.To[0].Email] {
					return 400, `{"errors":[{"message":"something is wrong","field":null}]}`, nil
				}
			}
			for _, p := range m.Personalizations {
				accepted[p.To[0].Email]++
			}
			return 0, "", nil
		}
	})
	for i, r := range collect(t, t.Context(), sg, testCall(notify.Email, notify.Content{Title: "t", Body: "b"}, 1000, mailbox)) {
		want := notify.ClassAccepted
		if bad[mailbox(i)] {
			want = notify.ClassPermanent
		}
		if r.Class != want {
			t.Errorf("%d: %+v", i, r)
		}
	}
	for i := range 1000 {
		if n := accepted[mailbox(i)]; (n == 1) == bad[mailbox(i)] {
			t.Errorf("%s was taken %d times", mailbox(i), n)
		}
	}
	if len(s.mails) > 60 {
		t.Errorf("%d requests", len(s.mails))
	}
}

// A 400 that names the receivers costs one more request.
func TestSendGridNamed(t *testing.T) {
	t.Parallel()
	sg, s := testSendGrid(t, func(s *sendGridServer, _ *SendGridConfig) {
		s.reply = func(m *sentMail) (int, string, http.Header) {
			var fields []string
			for i, p := range m.Personalizations {
				if strings.HasPrefix(p.To[0].Email, "user1") {
					fields = append(fields, fmt.Sprintf(`{"message":"Does not contain a valid address.","field":"personalizations.%d.to.0.email"}`, i))
				}
			}
			if fields == nil {
				return 0, "", nil
			}
			return 400, `{"errors":[` + strings.Join(fields, ",") + `]}`, nil
		}
	})
	for i, r := range collect(t, t.Context(), sg, testCall(notify.Email, notify.Content{Title: "t", Body: "b"}, 20, mailbox)) {
		want := notify.ClassAccepted
		if strings.HasPrefix(mailbox(i), "user1") {
			want = notify.ClassDeadAddress
		}
		if r.Class != want {
			t.Errorf("%d: %+v", i, r)
		}
	}
	if len(s.mails) != 2 {
		t.Errorf("%d requests", len(s.mails))
	}
}

func TestSendGridSplitsLarge(t *testing.T) {
	t.Parallel()
	sg, _ := testSendGrid(t, func(s *sendGridServer, _ *SendGridConfig) {
		s.reply = func(m *sentMail) (int, string, http.Header) {
			if len(m.Personalizations) > 3 || m.Personalizations[0].To[0].Email == mailbox(5) {
				return 413, "", nil
			}
			return 0, "", nil
		}
	})
	for i, r := range collect(t, t.Context(), sg, testCall(notify.Email, notify.Content{Title: "t", Body: "b"}, 20, mailbox)) {
		if (r.Class == notify.ClassAccepted) == (i == 5) || (i == 5 && r.Code != "payload_too_large") {
			t.Errorf("%d: %+v", i, r)
		}
	}
}

// A used-up limit holds everything until its reset; nothing is tried before.
func TestSendGridThrottled(t *testing.T) {
	t.Parallel()
	shared := &blocks{}
	sg, s := testSendGrid(t, func(s *sendGridServer, c *SendGridConfig) {
		c.Pools = []string{"a", "b"}
		c.Blocks = shared
		s.reply = func(*sentMail) (int, string, http.Header) {
			return 429, `{"errors":[{"message":"too many requests"}]}`, http.Header{"X-Ratelimit-Reset": {fmt.Sprint(time.Now().Unix() + 30)}}
		}
	})
	for i, r := range collect(t, t.Context(), sg, testCall(notify.Email, notify.Content{Title: "t", Body: "b"}, 3000, mailbox)) {
		if r.Class != notify.ClassThrottled || r.RetryAfter < 28*time.Second || r.RetryAfter > 30*time.Second {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	if len(s.mails) != 1 || len(shared.until) != 2 {
		t.Errorf("%d requests, %v", len(s.mails), shared.until)
	}
}

// If the request chose a sender that the account may not use, the request is at fault, and other
// mail is not stopped. Otherwise our configuration is wrong.
func TestSendGridSender(t *testing.T) {
	t.Parallel()
	sg, _ := testSendGrid(t, func(s *sendGridServer, _ *SendGridConfig) {
		s.reply = func(*sentMail) (int, string, http.Header) {
			return 403, `{"errors":[{"message":"The from address does not match a verified Sender Identity.","field":"from"}]}`, nil
		}
	})
	f := func(from string, class notify.Class, code string) {
		t.Helper()
		call := testCall(notify.Email, notify.Content{Title: "t", Body: "b", From: from}, 2, mailbox)
		for i, r := range collect(t, t.Context(), sg, call) {
			if r.Class != class || r.Code != code {
				t.Errorf("from %q, %d: %+v", from, i, r)
			}
		}
	}
	for range 20 { // often enough to switch an account off
		f("ceo@elsewhere.example", notify.ClassPermanent, "sendgrid_sender")
	}
	f("", notify.ClassConfig, "http_403")
}

// Values larger than SendGrid substitutes go out in a request of their own.
func TestSendGridLargeVariables(t *testing.T) {
	t.Parallel()
	sg, s := testSendGrid(t, nil)
	call := testCall(notify.Email, notify.Content{Title: "t", Body: "b {{v}}", HTML: "<b>{{v}}</b>"}, 3, mailbox)
	for i := range call.Items {
		call.Items[i].Variables = []byte(`{"v":"small"}`)
	}
	large := strings.Repeat("<", 7000)
	call.Items[1].Variables = []byte(`{"v":"` + large + `"}`)
	for i, r := range collect(t, t.Context(), sg, call) {
		if r.Class != notify.ClassAccepted {
			t.Errorf("%d: %+v", i, r)
		}
	}
	if len(s.mails) != 2 {
		t.Fatalf("%d requests", len(s.mails))
	}
	for _, m := range s.mails {
		if m.Personalizations[0].To[0].Email != mailbox(1) {
			continue
		}
		if m.Content[0].Value != "b "+large || m.Content[1].Value != "<b>"+strings.Repeat("&lt;", 7000)+"</b>" || m.Personalizations[0].Substitutions != nil {
			t.Errorf("%.100v", m)
		}
	}
}

func TestSendGridTakesPoolsInTurn(t *testing.T) {
	t.Parallel()
	sg, s := testSendGrid(t, func(_ *sendGridServer, c *SendGridConfig) {
		c.Pools = []string{"a", "b", "c"}
	})
	collect(t, t.Context(), sg, testCall(notify.Email, notify.Content{Title: "t", Body: "b"}, 6000, mailbox))
	n := map[string]int{}
	for _, m := range s.mails {
		n[m.Pool] += len(m.Personalizations)
	}
	if n["a"] != 2000 || n["b"] != 2000 || n["c"] != 2000 {
		t.Errorf("%v", n)
	}
}

// The result of a batch is reported in as few reports as its items allow, and each item once.
func TestReportAll(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ items, from, to []int }{
		{[]int{0, 1, 2}, []int{0}, []int{3}},
		{[]int{1, 2, 5, 7, 8}, []int{1, 5, 7}, []int{3, 6, 9}},
		{nil, nil, nil},
	} {
		var batch []personalization
		for _, i := range c.items {
			batch = append(batch, personalization{item: i})
		}
		var from, to []int
		reportAll(batch, notify.Result{}, func(a, b int, _ notify.Result) { from, to = append(from, a), append(to, b) })
		if !slices.Equal(from, c.from) || !slices.Equal(to, c.to) {
			t.Errorf("%v: %v to %v", c.items, from, to)
		}
	}
}
