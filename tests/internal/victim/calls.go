package victim

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// Client calls notifyd with a token for everything.
func (v *Victim) Client() *api.Client { return v.client }

// URL is where its API is, in all its lives.
func (v *Victim) URL() string { return v.client.BaseURL }

// TokenFile holds the token its clients use.
func (v *Victim) TokenFile() string { return filepath.Join(v.cfg.Data, "token") }

// CallbackURL returns the base URL of the simulated receiver of triggers.
func (v *Victim) CallbackURL(ctx context.Context) (string, error) {
	var urls struct {
		Callback string `json:"callback"`
	}
	err := v.get(ctx, v.control+"/urls.json", &urls)
	return urls.Callback, err
}

// Taken returns how many triggers the receiver was called for, and took.
func (v *Victim) Taken(ctx context.Context) (n int64, err error) {
	var sum struct {
		Taken int64 `json:"taken"`
	}
	err = v.get(ctx, v.control+"/callbacks/totals", &sum)
	return sum.Taken, err
}

// Call is one callback as the receiver saw it.
type Call struct {
	At    time.Time `json:"at"`
	ID    string    `json:"id"`
	Taken bool      `json:"taken"`
	Due   int64     `json:"due"` // ms since 1970, of the URL's query
	Path  string    `json:"path"`
}

// Calls passes every callback the receiver saw to fn, those of one trigger in
// the order they came.
func (v *Victim) Calls(ctx context.Context, fn func(Call)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.control+"/callbacks/dump", nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Timeout: 5 * time.Minute}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		var c Call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		fn(c)
	}
	return lines.Err()
}
