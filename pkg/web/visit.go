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

// visit is one request of somebody who has signed in.
type visit struct {
	page    *Page
	w       http.ResponseWriter
	r       *http.Request
	ctx     context.Context
	user    User
	session string
	client  *api.Client
}

// askFor is how long a page waits for the API.
const askFor = 10 * time.Second

// answer shows what h makes of a request of somebody who has signed in, if check has
// nothing against it.
func (p *Page) answer(w http.ResponseWriter, r *http.Request, check func(*visit) error, h func(*visit) error) {
	v, ok := p.enter(w, r)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askFor)
	defer cancel()
	v.ctx = ctx
	err := check(v)
	if err == nil {
		err = h(v)
	}
	if err != nil {
		v.fail(err)
	}
}

// mayLook checks a GET. A part of a query that cannot be read would be left out: of a
// filter, that selects more.
func mayLook(v *visit) error {
	if _, err := url.ParseQuery(v.r.URL.RawQuery); err != nil {
		return notify.Invalid(api.CodeMalformed, "", "the address cannot be read: in its query ; is written %3B, and % as %25")
	}
	return nil
}

// mayChange checks a POST: only of our own forms, and only of whoever may.
func mayChange(v *visit) error {
	switch {
	case v.r.ParseForm() != nil:
		return notify.Invalid("bad_form", "", "the form could not be read")
	case !v.page.sessions.fits(v.session, v.r.PostFormValue("csrf")):
		return &notify.Error{Kind: notify.KindForbidden, Code: "bad_form_token", Msg: "this form is not one of your session; open the page again"}
	case !v.user.MayChange:
		return &notify.Error{Kind: notify.KindForbidden, Code: "read_only", Msg: "your token only looks: changes need the scope " + api.ScopeOperate}
	}
	return nil
}

// enter finds who asks; else it leads to the form to sign in.
func (p *Page) enter(w http.ResponseWriter, r *http.Request) (*visit, bool) {
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

// live names the pages that are fetched again while they are looked at.
var live = map[string]bool{"overview": true, "failures": true, "circuits": true, "jobs": true, "job": true, "id": true, "forecast": true}

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
		Title: title, Nav: nav, User: v.user, CSRF: v.page.sessions.csrf(v.session), Live: live[name], Body: body,
	})
}

// fail shows an error as a page.
func (v *visit) fail(err error) {
	problem := problemOf(err)
	status := api.StatusOf(problem.Kind, problem.Code)
	v.render(status, "error", "Error", problem)
}

// problemOf is what an error says; what is none of ours is not shown.
func problemOf(err error) *notify.Error {
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return notify.Unavailable("timeout", 0, err)
	}
	return &notify.Error{Kind: notify.KindInternal, Code: "internal", Msg: "an error on our side", Err: err}
}

// goTo leads on after a change.
func (v *visit) goTo(path string) error {
	http.Redirect(v.w, v.r, path, http.StatusSeeOther)
	return nil
}

// signInBody is what the form to sign in shows.
type signInBody struct {
	Next  string
	Error string
	CSRF  string
}

// nextOf is where a sign-in leads: a page of ours, whatever the query says.
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
		p.refuse(w, http.StatusBadRequest, "The form could not be read.")
		return
	}
	next := nextOf(r.PostFormValue("next"))
	if !p.sessions.fits(p.cookie(r, cookieForm), r.PostFormValue("csrf")) {
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
		p.setCookie(w, r, cookieSession, p.sessions.begin(token), int(sessionLasts.Seconds()))
		http.Redirect(w, r, next, http.StatusSeeOther)
	}
}

func (p *Page) signOut(w http.ResponseWriter, r *http.Request) {
	if r.ParseForm() != nil || !p.sessions.fits(p.cookie(r, cookieSession), r.PostFormValue("csrf")) {
		p.refuse(w, http.StatusForbidden, "This form is not one of your session.")
		return
	}
	p.setCookie(w, r, cookieSession, "", -1)
	http.Redirect(w, r, Prefix+"sign-in", http.StatusSeeOther)
}

// part is one answer of the API on a page of several: where it could not be had,
// the others are shown all the same.
type part[T any] struct {
	V   T
	Err *notify.Error
}

// questions are asked at the same time.
type questions struct{ wg sync.WaitGroup }

func (q *questions) wait() { q.wg.Wait() }

// ask asks one of them; p is filled when wait returns.
func ask[T any](q *questions, p *part[T], question func() (T, error)) {
	q.wg.Go(func() {
		v, err := question()
		if err != nil {
			p.Err = problemOf(err)
			return
		}
		p.V = v
	})
}

// remembered keeps an answer that costs a walk over every dead letter for a
// while, so that pages left open cost little. It is the same for everybody who
// may look.
type remembered[T any] struct {
	asking singleflight.Group

	mu    sync.Mutex // never held over a question
	v     T
	until time.Time
}

const (
	rememberFor   = 10 * time.Second
	rememberTimes = 20 // an answer is kept this many times as long as it took
)

// get answers from memory, or asks. Who comes meanwhile waits for the same answer,
// also where it is an error: a question that takes its time and fails is not asked
// by each of them in turn.
func (r *remembered[T]) get(now func() time.Time, question func() (T, error)) (T, error) {
	if v, ok := r.known(now()); ok {
		return v, nil
	}
	v, err, _ := r.asking.Do("", func() (any, error) {
		began := now()
		if v, ok := r.known(began); ok { // another's answer has just come
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

func (r *remembered[T]) known(at time.Time) (v T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.v, at.Before(r.until)
}

// failedSince asks how dead letters of the last while failed.
func (v *visit) failedSince(keep *remembered[api.LetterTop], d time.Duration) (api.LetterTop, error) {
	now := v.page.cfg.Now
	return keep.get(now, func() (api.LetterTop, error) {
		// Not the request's context: the next visitor is shown the answer too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx), askFor)
		defer cancel()
		return v.client.TopDeadLetters(ctx, api.LetterFilter{Since: now().Add(-d).UnixMilli()}, 200)
	})
}

// inProcess carries requests to a handler of this process.
type inProcess struct{ to http.Handler }

// RoundTrip implements http.RoundTripper. A panic that ends a connection would
// end this one's page too: handlers turn theirs into answers.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	in := r.Clone(r.Context()) // handlers may change what they are given
	in.RequestURI = in.URL.RequestURI()
	if in.Body == nil {
		in.Body = http.NoBody
	}
	w := &answer{header: http.Header{}}
	t.to.ServeHTTP(w, in)
	w.WriteHeader(http.StatusOK) // unless it was written
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

// answer keeps what a handler writes.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	a.status = cmp.Or(a.status, status)
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}
