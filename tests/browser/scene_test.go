package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// scene fills notifyd with the data of a busy afternoon: callers whose notifications fail in
// several ways, notifications that are due later, and a circuit breaker that an operator opened.
func (s *server) scene() error {
	for _, rule := range [][]string{
		{"error", "--provider", "apns", "--code", "BadTopic", "--rate", "0.3"},
		{"error", "--provider", "twilio", "--status", "400", "--code", "21612", "--rate", "0.5"},
		{"error", "--provider", "sendgrid", "--status", "413", "--rate", "0.4"},
	} {
		if _, err := s.ctl(append([]string{"sim", "rule", "add"}, rule...)...); err != nil {
			return err
		}
	}
	type receiver struct {
		UserID string `json:"user_id"`
	}
	type one struct {
		Channel  string            `json:"channel"`
		Category string            `json:"category"`
		To       receiver          `json:"to"`
		Content  map[string]string `json:"content"`
		At       string            `json:"scheduled_at,omitempty"`
	}
	send := func(caller string, ns []one) error {
		var b strings.Builder
		for _, n := range ns {
			line, err := json.Marshal(n)
			if err != nil {
				return err
			}
			b.Write(append(line, '\n'))
		}
		_, err := s.post(caller, "/v1/notifications:batch", "application/x-ndjson", b.String())
		return err
	}
	var shop, billing, alarm, later []one
	hello := map[string]string{"title": "Your order", "body": "It is on its way."}
	now := time.Now()
	for i := range 100 {
		to := receiver{fmt.Sprintf("user-%03d", i)}
		shop = append(shop, one{Channel: "push", Category: "transactional", To: to, Content: hello})
		if i%2 == 0 {
			billing = append(billing, one{Channel: "email", Category: "transactional", To: to, Content: hello})
		}
		if i%4 == 0 {
			alarm = append(alarm, one{Channel: "sms", Category: "alert", To: to, Content: map[string]string{"body": "Water in the cellar"}})
		}
		what := []string{"push", "email", "push", "push", "email"}[i%5]
		at := now.Add(time.Duration(3+i*i%54) * time.Minute)
		later = append(later, one{Channel: what, Category: "transactional", To: to, Content: hello, At: at.UTC().Format(time.RFC3339)})
	}
	for caller, ns := range map[string][]one{"shop": shop, "billing": billing, "alarms": alarm} {
		if err := send(caller, ns); err != nil {
			return err
		}
	}
	if err := send("shop", later); err != nil {
		return err
	}
	if _, err := s.ctl("circuit", "open", "caller:shop", "--yes"); err != nil {
		return err
	}
	return s.settled(len(shop) + len(billing) + len(alarm))
}

// settled waits until sent receivers have an outcome, and the index of dead letters has every
// receiver that failed. At least one receiver must have failed. It returns an error after
// patience.
func (s *server) settled(sent int) error {
	for deadline := time.Now().Add(patience); ; {
		ended, failed, err := s.outcomes()
		if err != nil {
			return err
		}
		letters, err := s.ctl("dlq", "stats", "-o", "json", "--jq", ".total")
		if err != nil {
			return err
		}
		dead, err := strconv.Atoi(letters)
		if err != nil {
			return err
		}
		if ended >= sent && dead >= failed && failed > 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s %d of %d have an outcome; %d failed, %d are dead letters", patience, ended, sent, failed, dead)
		}
		time.Sleep(200 * time.Millisecond) // the index sends no event that settled could wait for
	}
}

// outcomes returns how many receivers have a final outcome, and how many of them failed. It reads
// the metrics of notifyd.
func (s *server) outcomes() (ended, failed int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.metrics, nil)
	if err != nil {
		return 0, 0, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if !strings.HasPrefix(name, "notifyd_outcomes_total{") || strings.Contains(name, `state="DEFERRED"`) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, 0, err
		}
		ended += int(n)
		if strings.Contains(name, `state="FAILED"`) {
			failed += int(n)
		}
	}
	return ended, failed, lines.Err()
}
