package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// visit is one request of a visitor who is signed in.
type visit struct {
	page    *Page
	w       http.ResponseWriter
	r       *http.Request
	ctx     context.Context
	user    User
	session string
	client  *api.Client
}

// apiTimeout is the time limit of a page's calls to the API.
const apiTimeout = 10 * time.Second

// serveVisit calls the handler h if the visitor is signed in and the function check returns no
// error. If check or h returns an error, serveVisit shows it as a page.
func (p *Page) serveVisit(w http.ResponseWriter, r *http.Request, check func(*visit) error, h func(*visit) error) {
	v, ok := p.authenticate(w, r)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), apiTimeout)
	defer cancel()
	v.ctx = ctx
	err := check(v)
	if err == nil {
		err = h(v)
	}
	if err != nil {
		v.showError(err)
	}
}

// checkGet checks a GET. It refuses a query that cannot be parsed, because a filter without the
// unreadable part would select more.
func checkGet(v *visit) error {
	if _, err := url.ParseQuery(v.r.URL.RawQuery); err != nil {
		return notify.Invalid(api.CodeMalformed, "", "the query of the address cannot be parsed; write ; as %3B and % as %25")
	}
	return nil
}

// checkPost checks a POST. The request must come from a form of this session, and the token must
// allow changes.
func checkPost(v *visit) error {
	switch {
	case v.r.ParseForm() != nil:
		return notify.Invalid("bad_form", "", "the form cannot be read")
	case !v.page.sessions.csrfMatches(v.session, v.r.PostFormValue("csrf")):
		return &notify.Error{Kind: notify.KindForbidden, Code: "bad_form_token", Msg: "this form does not belong to your session; open the page again"}
	case !v.user.MayChange:
		return &notify.Error{Kind: notify.KindForbidden, Code: "read_only", Msg: "your token is read-only: changes need the scope " + api.ScopeOperate}
	}
	return nil
}

// authenticate returns the visit of a visitor who is signed in. For other visitors it redirects to
// the sign-in form and returns false.
func (p *Page) authenticate(w http.ResponseWriter, r *http.Request) (*visit, bool) {
	session := p.cookie(r, cookieSession)
	token, ok := p.sessions.token(session)
	var user User
	if ok {
		var err error
		if user, err = p.cfg.Verify(r.Context(), token); err != nil && notify.KindOf(err) != notify.KindUnauthorized {
			p.refuse(w, http.StatusServiceUnavailable, "Tokens cannot be checked now.")
			return nil, false
		}
		ok = err == nil && user.MayLook
	}
	if !ok {
		if session != "" {
			p.setCookie(w, r, cookieSession, "", -1)
		}
		to := Prefix + "sign-in"
		if r.Method == http.MethodGet && r.URL.RequestURI() != Prefix {
			to += "?next=" + url.QueryEscape(r.URL.RequestURI())
		}
		http.Redirect(w, r, to, http.StatusSeeOther)
		return nil, false
	}
	return &visit{
		page: p, w: w, r: r, user: user, session: session,
		client: &api.Client{
			BaseURL: "http://notifyd", HTTPClient: &http.Client{Transport: inProcess{p.cfg.API}}, UserAgent: "notifyd-page",
			Context: "operator page", Token: func(context.Context) (string, error) { return token, nil },
		},
	}, true
}

// show renders a page for the visitor.
func (v *visit) show(name, title string, body any) error {
	v.render(http.StatusOK, name, title, body)
	return nil
}

// livePages are the pages that the script refreshes.
var livePages = map[string]bool{"overview": true, "failures": true, "circuits": true, "jobs": true, "job": true, "id": true, "forecast": true}

func (v *visit) render(status int, name, title string, body any) {
	nav := name
	switch name {
	case "job":
		nav = "jobs"
	case "plan":
		nav = "dead-letters"
	case "deadletters":
		nav = "dead-letters"
	}
	v.page.render(v.w, status, name, view{
		Title: title, Nav: nav, User: v.user, CSRF: v.page.sessions.csrf(v.session), Live: livePages[name], Body: body,
	})
}

// showError shows an error as a page.
func (v *visit) showError(err error) {
	problem := problemOf(err)
	status := api.StatusOf(problem.Kind, problem.Code)
	v.render(status, "error", "Error", problem)
}

// problemOf returns the error to show. It hides the text of errors of other packages, because that
// text is not written for visitors.
func problemOf(err error) *notify.Error {
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return notify.Unavailable("timeout", 0, err)
	}
	return &notify.Error{Kind: notify.KindInternal, Code: "internal", Msg: "internal error of the server", Err: err}
}

// goTo redirects to another page.
func (v *visit) goTo(path string) error {
	http.Redirect(v.w, v.r, path, http.StatusSeeOther)
	return nil
}

// signInBody is the body of the sign-in form.
type signInBody struct {
	Next  string
	Error string
	CSRF  string
}

// nextOf returns the page after a sign-in. It is always a page under Prefix, whatever the query
// contains.
func nextOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "" || u.Host != "" || u.Opaque != "" || !strings.HasPrefix(raw, Prefix) || !strings.HasPrefix(path.Clean(u.Path)+"/", Prefix) || strings.Contains(u.Path, "//") || strings.Contains(u.Path, `\`) {
		return Prefix
	}
	return raw
}

func (p *Page) signInForm(w http.ResponseWriter, r *http.Request) {
	p.showSignIn(w, r, http.StatusOK, nextOf(r.URL.Query().Get("next")), "")
}

func (p *Page) showSignIn(w http.ResponseWriter, r *http.Request, status int, next, problem string) {
	form := p.cookie(r, cookieForm)
	if form == "" {
		form = p.sessions.newFormName()
		p.setCookie(w, r, cookieForm, form, int(sessionLasts.Seconds()))
	}
	p.render(w, status, "signin", view{Title: "Sign in", Body: signInBody{Next: next, Error: problem, CSRF: p.sessions.csrf(form)}})
}

func (p *Page) signIn(w http.ResponseWriter, r *http.Request) {
	if r.ParseForm() != nil {
		p.refuse(w, http.StatusBadRequest, "The form cannot be read.")
		return
	}
	next := nextOf(r.PostFormValue("next"))
	if !p.sessions.csrfMatches(p.cookie(r, cookieForm), r.PostFormValue("csrf")) {
		p.showSignIn(w, r, http.StatusForbidden, next, "The form was too old. Try again; cookies must be allowed.")
		return
	}
	token := strings.TrimSpace(r.PostFormValue("token"))
	user, err := p.cfg.Verify(r.Context(), token)
	switch {
	case token == "":
		p.showSignIn(w, r, http.StatusUnprocessableEntity, next, "Paste a token.")
	case err != nil && notify.KindOf(err) != notify.KindUnauthorized:
		p.showSignIn(w, r, http.StatusServiceUnavailable, next, "Tokens cannot be checked now. Try again.")
	case err != nil:
		p.showSignIn(w, r, http.StatusUnauthorized, next, "Not signed in: "+problemOf(err).Msg+".")
	case !user.MayLook:
		p.showSignIn(w, r, http.StatusForbidden, next, "Not signed in: the token has neither the scope "+api.ScopeObserve+" nor "+api.ScopeOperate+".")
	case len(token) > maxSessionToken:
		p.showSignIn(w, r, http.StatusRequestEntityTooLarge, next, fmt.Sprintf("Not signed in: the token has %d bytes, and the page takes at most %d. Use a token with fewer claims.", len(token), maxSessionToken))
	default:
		p.setCookie(w, r, cookieForm, "", -1)
		p.setCookie(w, r, cookieSession, p.sessions.newCookie(token), int(sessionLasts.Seconds()))
		http.Redirect(w, r, next, http.StatusSeeOther)
	}
}

func (p *Page) signOut(w http.ResponseWriter, r *http.Request) {
	if r.ParseForm() != nil || !p.sessions.csrfMatches(p.cookie(r, cookieSession), r.PostFormValue("csrf")) {
		p.refuse(w, http.StatusForbidden, "This form does not belong to your session.")
		return
	}
	p.setCookie(w, r, cookieSession, "", -1)
	http.Redirect(w, r, Prefix+"sign-in", http.StatusSeeOther)
}

// part is one answer of the API on a page with several answers. If one answer has an error, the
// page still shows the other answers.
type part[T any] struct {
	V   T
	Err *notify.Error
}

// apiCalls makes calls of the API at the same time.
type apiCalls struct{ wg sync.WaitGroup }

func (q *apiCalls) wait() { q.wg.Wait() }

// addCall makes a call in a goroutine. That goroutine owns p until wait returns.
func addCall[T any](q *apiCalls, p *part[T], question func() (T, error)) {
	q.wg.Go(func() {
		v, err := question()
		if err != nil {
			p.Err = problemOf(err)
			return
		}
		p.V = v
	})
}

// cachedAnswer caches an answer for which the API must read every dead letter. Without the cache,
// pages that stay open would cost much. The answer is the same for every visitor who may read.
type cachedAnswer[T any] struct {
	calls singleflight.Group

	mu    sync.Mutex // guards v and until; never held during a call
	v     T
	until time.Time
}

const (
	rememberFor   = 10 * time.Second
	rememberTimes = 20 // the answer is kept for this many times the duration of its call, but at least for rememberFor
)

// get returns the cached answer, or calls question. Concurrent callers wait for the same answer,
// even if it is an error. Otherwise each caller would repeat a slow call that fails.
func (r *cachedAnswer[T]) get(now func() time.Time, question func() (T, error)) (T, error) {
	if v, ok := r.fresh(now()); ok {
		return v, nil
	}
	v, err, _ := r.calls.Do("", func() (any, error) {
		began := now()
		if v, ok := r.fresh(began); ok { // another caller has just stored an answer
			return v, nil
		}
		v, err := question()
		if err != nil {
			return v, err
		}
		done := now()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.v, r.until = v, done.Add(max(rememberFor, rememberTimes*done.Sub(began)))
		return v, nil
	})
	return v.(T), err
}

func (r *cachedAnswer[T]) fresh(at time.Time) (v T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.v, at.Before(r.until)
}

// failedSince returns the groups of dead letters that failed in the time d before now.
func (v *visit) failedSince(keep *cachedAnswer[api.LetterTop], d time.Duration) (api.LetterTop, error) {
	now := v.page.cfg.Now
	return keep.get(now, func() (api.LetterTop, error) {
		// Do not use the request's context, because other visitors may wait for this answer too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx), apiTimeout)
		defer cancel()
		return v.client.TopDeadLetters(ctx, api.LetterFilter{Since: now().Add(-d).UnixMilli()}, 200)
	})
}

// inProcess passes requests to a handler of this process.
type inProcess struct{ to http.Handler }

// RoundTrip implements http.RoundTripper. It does not recover from panics, because the handlers do
// it themselves.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	in := r.Clone(r.Context()) // handlers may change their request
	in.RequestURI = in.URL.RequestURI()
	if in.Body == nil {
		in.Body = http.NoBody
	}
	w := &bufferedResponse{header: http.Header{}}
	t.to.ServeHTTP(w, in)
	w.WriteHeader(http.StatusOK) // has no effect if the handler has written a status
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

// bufferedResponse keeps the answer of a handler in memory.
type bufferedResponse struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *bufferedResponse) Header() http.Header { return a.header }

func (a *bufferedResponse) WriteHeader(status int) {
	a.status = cmp.Or(a.status, status)
}

func (a *bufferedResponse) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}
