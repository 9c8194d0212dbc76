package simulator

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
	"slices"
	"strings"
)

//go:embed inbox.html
var inboxHTML string

var inboxTemplate = template.Must(template.New("inbox").Parse(inboxHTML))

// inboxView holds the data that the template of the page reads.
type inboxView struct {
	Messages []Message
	Summary  Summary
	Channels []string
	Channel  string
	Query    string
	Filtered bool // true: channel or query select only some messages
}

func inboxPage(s *Simulator, w http.ResponseWriter, r *http.Request) {
	v := inboxView{
		Summary: s.ledger.Summary(), Channels: []string{"", "push", "sms", "email"},
		Channel: r.FormValue("channel"), Query: r.FormValue("q"),
	}
	v.Filtered = v.Channel != "" || v.Query != ""
	v.Messages = filterInbox(s.Inbox(), v.Channel, v.Query)
	var page bytes.Buffer
	if err := inboxTemplate.Execute(&page, v); err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'")
	_, _ = w.Write(page.Bytes())
}

func inboxJSON(s *Simulator, w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, filterInbox(s.Inbox(), r.FormValue("channel"), r.FormValue("q")))
}

// filterInbox returns the messages of the channel that contain q. If channel is empty, it returns
// messages of all channels. If q is empty, it does not search.
func filterInbox(ms []Message, channel, q string) []Message {
	q = strings.ToLower(q)
	return slices.DeleteFunc(ms, func(m Message) bool {
		if channel != "" && m.Channel != channel {
			return true
		}
		return q != "" && !slices.ContainsFunc([]string{m.To, m.Title, m.Body, m.ID}, func(t string) bool {
			return strings.Contains(strings.ToLower(t), q)
		})
	})
}
