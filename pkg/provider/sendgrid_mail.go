package provider

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/mail"
	"strconv"
	"sync"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Limits of one request.
const (
	sendGridBatch         = 1000  // personalizations
	sendGridSubstitutions = 10000 // bytes of one personalization's substitutions
	// notifyd's own limits, in bytes, after variables were filled in. SendGrid itself accepts 30 MB
	// for a whole mail.
	maxSubject = 2 << 10
	maxMail    = 1 << 20 // applies to the text and to the HTML, each by itself
)

// mailing contains what all receivers of a call share, and the rendered personalizations.
//
// A request has one content for all receivers. So each placeholder becomes a tag, and SendGrid
// replaces the tag by a value from the personalization's substitutions. For the same variable, the
// plain text and the HTML have different tags, because the value for the HTML is escaped. If the
// request has a template id, the values go into dynamic_template_data instead.
type mailing struct {
	call                *notify.Call
	trace               traceHeader
	from                []byte // JSON
	subject, text, html Template
	names               [2][]string // the variables of the plain text, and the variables of the HTML
	vars                Variables
	buf                 []byte // the personalizations
	scratch, tail       []byte
	id                  idText
	// test is true for a test mail. Such a mail has no reference, so that notifyd does not treat
	// its events as receipts.
	test    bool
	sandbox bool // SendGrid checks the mail and does not deliver it
}

// personalization is one receiver's part of a request.
type personalization struct {
	item     int // index in the call
	from, to int // range in mailing.buf
	// alone means that the substitutions are larger than SendGrid accepts. Then the receiver gets a
	// separate request with rendered content. The content is rendered only when the request is
	// made, because there may be a thousand such receivers.
	alone bool
}

func (s *SendGrid) newMailing(call *notify.Call) (*mailing, error) {
	text := call.Content
	m := &mailing{call: call, trace: traceOf(call)}
	var err error
	if m.vars, err = SharedVariables(text.Variables); err != nil {
		return nil, err
	}
	from := s.cfg.From
	if text.From != "" {
		from = text.From
	}
	if m.from, err = senderJSON(from); err != nil {
		return nil, err
	}
	if text.Template != "" {
		return m, nil
	}
	m.subject = ParseTemplate(text.Title, Plain)
	m.text, m.html = ParseTemplate(text.Body, Plain), ParseTemplate(text.HTML, HTML)
	m.names[0], m.names[1] = m.text.Names(), m.html.Names()
	if m.text.Empty() && m.html.Empty() {
		return nil, notify.Invalid("empty_content", "content.body", `the mail has no content; set "body", "html" or "template"`)
	}
	return m, nil
}

// senderJSON returns the JSON of an address with an optional name.
func senderJSON(s string) ([]byte, error) {
	a, err := mail.ParseAddress(s)
	if err != nil {
		return nil, notify.Invalid("bad_from", "content.from", "must be an address, or a name and an address in angle brackets")
	}
	b := appendQuoted([]byte(`{"email":`), a.Address)
	if a.Name != "" {
		b = appendQuoted(append(b, `,"name":`...), a.Name)
	}
	return append(b, '}'), nil
}

// substitutionTag returns the tag that replaces a variable's placeholder in the content. The tag ends
// with "-", so that no tag is a prefix of another tag.
func substitutionTag(kind byte, i int) string { return "-ntf." + string(kind) + strconv.Itoa(i) + "-" }

func substitutionTagger(kind byte) func(place int) string {
	return func(place int) string { return substitutionTag(kind, place) }
}

// personalize renders the personalization of one receiver.
func (m *mailing) personalize(i int) (personalization, error) {
	it := &m.call.Items[i]
	p := personalization{item: i, from: len(m.buf)}
	if err := m.vars.SetOwn(it.Variables); err != nil {
		return p, err
	}
	b := append(m.buf, `{"to":[{"email":`...)
	b = appendQuoted(b, it.Address)
	b = append(b, `}]`...)
	if !m.test {
		b = append(b, `,"custom_args":{"ntf":"`...)
		b = m.id.append(b, it.ID())
		b = append(b, `","ref":"`...)
		b = AppendRef(b, RefOf(it))
		b = append(b, `"}`...)
	}
	var err error
	if m.call.Content.Template != "" {
		at := len(b)
		var any bool
		if b, any = m.vars.appendObject(append(b, `,"dynamic_template_data":`...), asGiven); !any {
			b = b[:at]
		}
	} else if b, err = m.appendSubstitutions(b, &p); err != nil {
		return p, err
	}
	m.buf = append(b, '}')
	p.to = len(m.buf)
	return p, nil
}

// appendSubstitutions appends the subject and the substitutions.
func (m *mailing) appendSubstitutions(b []byte, p *personalization) ([]byte, error) {
	var err error
	if !m.subject.Static() {
		if m.scratch, err = m.subject.Append(m.scratch[:0], &m.vars, maxSubject); err != nil {
			return b, err
		}
		b = appendQuoted(append(b, `,"subject":`...), m.scratch)
	}
	at, size, open := len(b), 0, `,"substitutions":{`
	for kind, names := range m.names {
		for i, name := range names {
			val, err := m.vars.value(name)
			if err != nil {
				return b, err
			}
			t := substitutionTag("th"[kind], i)
			b = appendQuoted(append(b, open...), t)
			b = append(b, ':')
			m.scratch = appendEncoded(m.scratch[:0], val, [...]Encoding{Plain, HTML}[kind])
			b = appendQuoted(b, m.scratch)
			size += len(t) + len(m.scratch)
			open = ","
		}
	}
	if open == "," {
		b = append(b, '}')
	}
	if size > sendGridSubstitutions {
		p.alone = true
		_, _, err := m.renderContent() // find an error now, before the request is written
		return b[:at], err
	}
	return b, nil
}

// renderContent renders the content for the receiver whose variables were set last in m.vars. Both
// results are valid until the next call.
func (m *mailing) renderContent() (text, html []byte, err error) {
	b, err := m.text.Append(m.scratch[:0], &m.vars, maxMail)
	n := len(b)
	if err == nil {
		b, err = m.html.Append(b, &m.vars, maxMail)
	}
	m.scratch = b
	return b[:n], b[n:], err
}

func appendContent[T string | []byte](b []byte, text, html T) []byte {
	b = append(b, `,"content":[`...)
	if len(text) > 0 {
		b = appendQuoted(append(b, `{"type":"text/plain","value":`...), text)
		b = append(b, '}')
		if len(html) > 0 {
			b = append(b, ',')
		}
	}
	if len(html) > 0 {
		b = appendQuoted(append(b, `{"type":"text/html","value":`...), html)
		b = append(b, '}')
	}
	return append(b, ']')
}

// nextBatch divides the receivers that the slice parts holds: it returns the receivers of the next
// request (batch) and all others (rest). A request has at most 1,000 receivers, and no address
// twice. A receiver whose field alone is true gets a separate request.
func (m *mailing) nextBatch(parts []personalization) (batch, rest []personalization) {
	if parts[0].alone {
		return parts[:1], parts[1:]
	}
	seen := make(map[string]struct{}, min(len(parts), sendGridBatch))
	var key []byte
	for i := range parts {
		key = append(key[:0], m.call.Items[parts[i].item].Address...)
		for j, c := range key {
			if c >= 'A' && c <= 'Z' {
				key[j] = c + 'a' - 'A'
			}
		}
		_, twice := seen[string(key)]
		if twice || parts[i].alone || len(batch) == sendGridBatch {
			rest = append(rest, parts[i])
			continue
		}
		seen[string(key)] = struct{}{}
		batch = append(batch, parts[i])
	}
	return batch, rest
}

var gzips = sync.Pool{New: func() any { w, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed); return w }}

// encode writes the request's body, compressed. It does not build the uncompressed body in memory.
func (m *mailing) encode(to *bytes.Buffer, batch []personalization, pool string) error {
	z := gzips.Get().(*gzip.Writer)
	defer gzips.Put(z)
	z.Reset(to)
	_, _ = io.WriteString(z, `{"personalizations":[`) // Close reports the first failed write
	for i := range batch {
		if i > 0 {
			_, _ = z.Write([]byte{','})
		}
		_, _ = z.Write(m.buf[batch[i].from:batch[i].to])
	}
	var ownText, ownHTML []byte
	if batch[0].alone {
		err := m.vars.SetOwn(m.call.Items[batch[0].item].Variables)
		if err == nil {
			ownText, ownHTML, err = m.renderContent()
		}
		if err != nil {
			return err // not expected: personalize has rendered the same content without an error
		}
	}
	b := append(m.tail[:0], `],"from":`...)
	b = append(b, m.from...)
	text := m.call.Content
	if text.Template != "" {
		b = appendQuoted(append(b, `,"template_id":`...), text.Template)
	} else {
		if m.subject.Static() {
			b = appendQuoted(append(b, `,"subject":`...), text.Title)
		}
		if batch[0].alone {
			b = appendContent(b, ownText, ownHTML)
		} else {
			b = appendContent(b, m.text.Substitute(substitutionTagger('t')), m.html.Substitute(substitutionTagger('h')))
		}
	}
	b = append(b, `,"categories":["`+m.call.Category.String()+`"]`...)
	if pool != "" {
		b = appendQuoted(append(b, `,"ip_pool_name":`...), pool)
	}
	if m.sandbox {
		b = append(b, `,"mail_settings":{"sandbox_mode":{"enable":true}}`...)
	}
	m.tail = append(b, '}')
	_, _ = z.Write(m.tail)
	return z.Close()
}
