package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Prefix is the path of the page.
const Prefix = "/ui/"

// User is the owner of a token. If MayChange is true, MayLook is also true.
type User struct {
	Name      string
	MayLook   bool
	MayChange bool
}

// Config configures a Page. API, Key and Verify are required.
type Config struct {
	// API is the server's API handler in this process.
	API http.Handler
	// Key seals sessions and signs forms. It has at least 32 bytes. All processes with the same
	// public address must have the same key.
	Key []byte
	// Verify returns the user of a token. For an invalid token it returns a notify.KindUnauthorized
	// error. It is called for every request.
	Verify func(ctx context.Context, token string) (User, error)
	// Secure marks cookies as secure although this process gets requests without TLS. Set it if a
	// proxy in front of this process ends TLS.
	Secure bool
	Log    *slog.Logger     // nil: discarded
	Now    func() time.Time // nil: time.Now
}

// Page serves the operator page. It may be used from many goroutines.
type Page struct {
	cfg      Config
	mux      *http.ServeMux
	pages    map[string]*template.Template
	assets   map[string]asset
	style    string // paths of assets, with their hashes
	script   string
	icon     string
	sessions *sessions
	origin   *http.CrossOriginProtection
	top      cachedAnswer[api.LetterTop]
	hour     cachedAnswer[api.LetterTop]
}

type asset struct {
	kind string
	data []byte
}

//go:embed templates/*.html
var templates embed.FS

//go:embed assets/*
var assets embed.FS

// New returns a Page with its templates. It starts no goroutine.
func New(cfg Config) (*Page, error) {
	if cfg.API == nil || cfg.Verify == nil {
		return nil, errors.New("web: API and Verify are required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	sessions, err := newSessions(cfg.Key, cfg.Now)
	if err != nil {
		return nil, err
	}
	p := &Page{
		cfg: cfg, mux: http.NewServeMux(), pages: map[string]*template.Template{}, assets: map[string]asset{},
		sessions: sessions, origin: http.NewCrossOriginProtection(),
	}
	if err := p.readAssets(); err != nil {
		return nil, err
	}
	if err := p.readTemplates(); err != nil {
		return nil, err
	}
	p.routes()
	return p, nil
}

// readAssets names each asset by its hash, so that browsers can cache it forever.
func (p *Page) readAssets() error {
	kinds := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	for name, to := range map[string]*string{"style.css": &p.style, "page.js": &p.script, "icon.svg": &p.icon} {
		data, err := fs.ReadFile(assets, "assets/"+name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		ext := path.Ext(name)
		at := strings.TrimSuffix(name, ext) + "." + hex.EncodeToString(sum[:6]) + ext
		p.assets[at] = asset{kinds[ext], data}
		*to = Prefix + "assets/" + at
	}
	return nil
}

func (p *Page) readTemplates() error {
	base, err := template.New("layout.html").Funcs(p.funcs()).ParseFS(templates, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return err
	}
	names, err := fs.Glob(templates, "templates/*.html")
	if err != nil {
		return err
	}
	for _, name := range names {
		short := strings.TrimSuffix(path.Base(name), ".html")
		if short == "layout" || short == "parts" {
			continue
		}
		t, err := base.Clone()
		if err == nil {
			t, err = t.ParseFS(templates, name)
		}
		if err != nil {
			return err
		}
		p.pages[short] = t
	}
	return nil
}

func (p *Page) routes() {
	look := func(pattern string, h func(*visit) error) {
		p.mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) { p.serveVisit(w, r, checkGet, h) })
	}
	change := func(pattern string, h func(*visit) error) {
		p.mux.HandleFunc("POST "+pattern, func(w http.ResponseWriter, r *http.Request) { p.serveVisit(w, r, checkPost, h) })
	}
	look(Prefix+"{$}", p.overview)
	look(Prefix+"failures", p.failures)
	look(Prefix+"circuits", p.circuits)
	look(Prefix+"notifications", p.notifications)
	look(Prefix+"dead-letters", p.deadLetters)
	look(Prefix+"plan", p.plan)
	look(Prefix+"jobs", p.jobs)
	look(Prefix+"jobs/{id}", p.job)
	look(Prefix+"suppressions", p.suppressions)
	look(Prefix+"lanes", p.lanes)
	look(Prefix+"schedules", p.schedules)
	look(Prefix+"campaigns", p.campaigns)
	look(Prefix+"callers", p.callers)
	look(Prefix+"forecast", p.forecast)
	look(Prefix+"audit", p.audit)
	look(Prefix+"find", p.find)
	look(Prefix+"id/{id}", p.id)
	look(Prefix+"users/{id}", p.user)
	change(Prefix+"circuits", p.setCircuit)
	change(Prefix+"suppressions", p.liftSuppression)
	change(Prefix+"lanes", p.setLane)
	change(Prefix+"jobs", p.startJob)
	change(Prefix+"jobs/{id}", p.changeJob)
	p.mux.HandleFunc("GET "+Prefix+"sign-in", p.signInForm)
	p.mux.HandleFunc("POST "+Prefix+"sign-in", p.signIn)
	p.mux.HandleFunc("POST "+Prefix+"sign-out", p.signOut)
	p.mux.HandleFunc("GET "+Prefix+"assets/{name}", p.asset)
	p.mux.HandleFunc(Prefix, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			p.refuse(w, http.StatusMethodNotAllowed, "This path does not accept this method.")
			return
		}
		p.serveVisit(w, r, checkGet, func(*visit) error {
			return &notify.Error{Kind: notify.KindNotFound, Code: api.CodeRouteNotFound, Msg: "there is no such page"}
		})
	})
}

// setHeaders sets the headers of every answer. Because of these headers, only the page's own
// scripts and styles run, no site can put the page into a frame, and browsers do not cache the
// page.
func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
}

// maxForm is the largest size of a form's body, in bytes. The largest form contains a plan's spec.
const maxForm = 1 << 20

// ServeHTTP implements http.Handler for paths under Prefix.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setHeaders(w.Header())
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := p.origin.Check(r); err != nil {
		p.refuse(w, http.StatusForbidden, "This request came from another site.")
		return
	}
	p.mux.ServeHTTP(w, r)
}

func (p *Page) asset(w http.ResponseWriter, r *http.Request) {
	a, ok := p.assets[r.PathValue("name")]
	if !ok {
		p.refuse(w, http.StatusNotFound, "There is no such file.")
		return
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(a.data)
}

// refuse answers in plain text if no page can be shown.
func (p *Page) refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}

// view is the data of every template.
type view struct {
	Title               string
	Nav                 string // the selected entry of the navigation
	User                User
	CSRF                string
	Now                 time.Time
	Style, Script, Icon string
	Live                bool // the script refreshes the page
	Body                any
}

// render writes a page. It escapes all control characters in the data, including characters that
// change a terminal or the direction of text. See notify.IsControl.
func (p *Page) render(w http.ResponseWriter, status int, name string, v view) {
	v.Now, v.Style, v.Script, v.Icon = p.cfg.Now(), p.style, p.script, p.icon
	var b bytes.Buffer
	if err := p.pages[name].Execute(&b, v); err != nil {
		p.cfg.Log.Error("cannot render the operator page", "page", name, "err", err)
		p.refuse(w, http.StatusInternalServerError, "The page cannot be shown; the server's log says why.")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(escapeControls(b.Bytes()))
}

// escapeControls escapes control characters, except line ends and tabs.
func escapeControls(page []byte) []byte {
	var out bytes.Buffer
	for len(page) > 0 {
		end := bytes.IndexAny(page, "\n\t")
		if end < 0 {
			end = len(page)
		}
		out.WriteString(notify.EscapeControls(string(page[:end])))
		if page = page[end:]; len(page) > 0 {
			out.WriteByte(page[0])
			page = page[1:]
		}
	}
	return out.Bytes()
}
