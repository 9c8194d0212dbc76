package browser

import (
	"context"
	_ "embed"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

//go:embed testdata/axe.min.js
var axe string

// tab is a page in a browser of its own.
type tab struct {
	*testing.T
	ctx context.Context
}

// browser starts a browser that is not signed in, and returns its tab. The browser ends with
// the test.
func browser(t *testing.T) tab {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(patience), chromedp.Flag("hide-scrollbars", true))
	ctx, cancel := context.WithTimeout(t.Context(), 8*patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits until the browser has ended, because its folder is removed next
		cancel()
	})
	b := tab{t, ctx}
	// The first Do starts the browser, and the browser ends with the context of that call. So the
	// context here must be the context of the tab.
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Fatal(err)
	}
	return b
}

// do runs the steps for at most two minutes. If a step fails or the time runs out, the test
// fails, and the error shows the address and the text of the page.
func (b tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	err := chromedp.Do(ctx, steps...)
	if err == nil {
		return
	}
	ctx, cancel = context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	where, _ := chromedp.Run(ctx, chromedp.Location())
	text, _ := chromedp.Run(ctx, chromedp.Text(chromedp.CSS("body")))
	b.Fatalf("%v; the page is %q and shows %.1000q", err, where, text)
}

// press activates a button or a link with the keyboard. A click could miss the element, because
// styles that load late can move the element after the browser has computed its position.
func press(css string) chromedp.Action[chromedp.Void] {
	return chromedp.SendKeys(chromedp.CSS(css), kb.Enter)
}

// get runs an action and returns its result.
func get[T any](b tab, a chromedp.Action[T]) T {
	b.Helper()
	v, err := chromedp.Run(b.ctx, a)
	if err != nil {
		b.Fatal(err)
	}
	return v
}

// js evaluates a JavaScript expression in the page. If the value is a promise, js waits for its
// result.
func js[T any](b tab, expression string) T {
	b.Helper()
	return get(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// command sends the browser a command of the DevTools protocol.
func command[P, R any](b tab, cmd cdp.Command[P, R], params P) {
	b.Helper()
	if _, err := chromedp.Call(b.ctx, cmd, params); err != nil {
		b.Fatal(err)
	}
}

// look sets the size of the page and the colour scheme.
func (b tab) look(width, height int64, scheme string) {
	b.Helper()
	command(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 500})
	command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// open opens a page of the operator page and waits until its element main is visible.
func (b tab) open(path string) {
	b.Helper()
	b.do(chromedp.Navigate(dev.url+path), see("main"))
}

// see waits until an element is visible.
func see(css string) chromedp.Action[chromedp.Void] { return chromedp.WaitVisible(chromedp.CSS(css)) }

// signIn puts a token into the sign-in form, as an operator who pastes it, and signs in.
func (b tab) signIn(caller, scope string) {
	b.Helper()
	token, err := dev.token(caller, scope)
	if err != nil {
		b.Fatal(err)
	}
	b.open("/ui/")
	b.do(see("#token"))
	js[bool](b, fmt.Sprintf(`(document.getElementById("token").value = %q, true)`, token))
	b.do(press("button.main"), see("header.top"))
}

// pages returns the paths of all pages: the pages of the navigation, and the pages that they
// link to.
func pages(b tab) []string {
	b.Helper()
	id, err := dev.ctl("dlq", "ls", "--limit", "1", "-o", "json", "--jq", ".items[0].notification_id")
	if err != nil {
		b.Fatal(err)
	}
	return []string{
		"/ui/", "/ui/failures", "/ui/dead-letters", "/ui/dead-letters?caller=shop&since=-24h", "/ui/plan?kind=replay&caller=shop",
		"/ui/plan?kind=discard&caller=shop", "/ui/plan?kind=replay", "/ui/jobs", "/ui/circuits", "/ui/forecast", "/ui/audit",
		"/ui/notifications", "/ui/suppressions", "/ui/lanes", "/ui/schedules", "/ui/campaigns", "/ui/callers",
		"/ui/id/" + url.PathEscape(id), "/ui/users/user-001", "/ui/id/ntf_unknown", "/ui/nothing-here",
	}
}

var looks = []struct {
	name          string
	width, height int64
	scheme        string
}{
	{"desktop light", 1280, 800, "light"}, {"desktop dark", 1280, 800, "dark"},
	{"phone light", 390, 844, "light"}, {"phone dark", 390, 844, "dark"},
}

// TestEveryPage checks every page in every look. axe-core finds no serious or critical
// violation. No element is wider than the window. No page writes an error into the console.
func TestEveryPage(t *testing.T) {
	b := browser(t)
	console, stop := context.WithCancel(b.ctx)
	defer stop()
	messages := chromedp.Console(console)
	checked := 0
	check := func(where string) {
		t.Helper()
		if found := b.violations(); found != "" {
			t.Errorf("%s: %s", where, found)
		}
		if wide := js[string](b, widest); wide != "" {
			t.Errorf("%s: wider than the window: %s", where, wide)
		}
		checked++
	}
	// The test injects axe, which the page's content security policy forbids. So this test, and no
	// other test, turns the policy off.
	command(b, cdppage.SetBypassCSP, cdppage.SetBypassCSPParams{Enabled: true})
	for _, l := range looks {
		b.look(l.width, l.height, l.scheme)
		command(b, network.ClearBrowserCookies, cdp.Empty{})
		b.open("/ui/sign-in")
		check("sign-in, " + l.name)
		b.signIn("sre", "operate")
		for _, p := range pages(b) {
			b.open(p)
			check(p + ", " + l.name)
		}
	}
	if checked != len(looks)*(1+len(pages(b))) {
		t.Errorf("only %d pages were checked", checked)
	}
	js[bool](b, `(console.log("the end"), true)`)
	for m, err := range messages {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(m.String(), "the end") {
			break
		}
		if m.IsException() {
			t.Error(m)
		}
	}
}

// widest is an expression that returns the HTML of an element that makes the page scroll
// sideways, or "" if the page does not scroll sideways.
const widest = `(() => {
  const w = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= w) return "";
  for (const e of document.querySelectorAll("body *"))
    if (e.getBoundingClientRect().right > w + 1 && !e.closest(".hidden, .skip")) return e.outerHTML.slice(0, 120);
  return "something";
})()`

// violations returns the violations that axe-core rates serious or critical, one on each line.
func (b tab) violations() string {
	b.Helper()
	b.do(chromedp.Evaluate[chromedp.Void](axe))
	found := js[[]string](b, `axe.run(document, {resultTypes: ["violations"]}).then(r =>
  r.violations.filter(v => v.impact === "serious" || v.impact === "critical").map(v => v.id + ": " + v.nodes.map(n => n.html.slice(0, 160) + " " + (n.any[0] ? n.any[0].message : "")).join(" | ")))`)
	return strings.Join(found, "\n")
}

// TestAxeFinds checks that axe-core, on which TestEveryPage relies, finds a known violation.
func TestAxeFinds(t *testing.T) {
	b := browser(t)
	b.do(chromedp.Navigate("data:text/html,<html lang=en><title>x</title><main><input><p style='color:%23aaa'>pale</p></main>"))
	if got := b.violations(); !strings.Contains(got, "label") || !strings.Contains(got, "color-contrast") {
		t.Errorf("axe found only %q", got)
	}
}

// TestPolicy checks that the page's content security policy allows notifyd's script and style,
// and blocks an injected script.
func TestPolicy(t *testing.T) {
	b := browser(t)
	b.signIn("sre", "operate")
	b.do(see("footer button"))
	if font := js[string](b, `getComputedStyle(document.querySelector(".cmd")).fontFamily`); !strings.Contains(font, "mono") {
		t.Errorf("our style does not hold: %q", font)
	}
	if js[bool](b, `(() => { const s = document.createElement("script"); s.textContent = "window.ran = true"; document.body.append(s); return !!window.ran; })()`) {
		t.Error("a script in the page ran")
	}
}

// TestKeyboard replays dead letters with the keyboard alone: from the list of dead letters to a
// plan, and from the plan to a finished job. The focus is visible on each element it uses.
func TestKeyboard(t *testing.T) {
	b := browser(t)
	b.signIn("sre", "operate")
	// to presses Tab until the focus is on the element whose label or text begins with text.
	to := func(text string) {
		t.Helper()
		for range 400 {
			b.do(chromedp.KeyEvent(kb.Tab))
			is := js[struct {
				Text    string
				Outline float64
			}](b, `(() => { const e = document.activeElement, s = getComputedStyle(e);
  return {Text: (e.labels && e.labels[0] || e).textContent.trim(), Outline: s.outlineStyle === "none" ? 0 : parseFloat(s.outlineWidth)}; })()`)
			if strings.HasPrefix(is.Text, text) {
				if is.Outline < 1 {
					t.Errorf("the focus on %q does not show", is.Text)
				}
				return
			}
		}
		t.Fatalf("no Tab leads to %q", text)
	}
	b.open("/ui/dead-letters?caller=alarms")
	to("Skip to content")
	to("Plan a replay of these")
	b.do(chromedp.KeyEvent(kb.Enter), see("#o-rate"))
	to("Canary") // the focus selects the text of the field, so typing replaces the text
	b.do(chromedp.KeyEvent("0"), chromedp.KeyEvent(kb.Enter), see(`#o-canary[value="0"]`))
	to("Reason")
	b.do(chromedp.KeyEvent("carrier is back"))
	to("Replay ")
	b.do(chromedp.KeyEvent(kb.Enter), see("progress"))
	where := get(b, chromedp.Location())
	if !strings.Contains(where, "/ui/jobs/job_") {
		t.Fatalf("the replay led to %s", where)
	}
	b.do(see("h1 .state.ok")) // the page reloads its content until the job is done
	reason, err := dev.ctl("job", "show", where[strings.LastIndex(where, "/")+1:], "-o", "json", "--jq", `.reason + "/" + .by`)
	if err != nil || reason != "carrier is back/sre" {
		t.Errorf("the job says %q, %v", reason, err)
	}
}

// TestGroups follows the link of each group of dead letters that failed in the same way. The
// link leads to a list of letters, and from the list to a plan that selects letters.
func TestGroups(t *testing.T) {
	b := browser(t)
	b.signIn("sre", "operate")
	b.open("/ui/dead-letters")
	links := js[[]string](b, `[...document.querySelectorAll("[aria-labelledby=how] tbody th a")].map(a => a.getAttribute("href"))`)
	if len(links) < 2 { // not 3: e-mails fail by whole batches, so perhaps no e-mail failed
		t.Fatalf("groups %v", links)
	}
	for _, link := range links {
		b.open(link)
		if n := js[int](b, `document.querySelectorAll("[aria-labelledby=each] tbody tr").length`); n == 0 {
			t.Errorf("%s lists nothing", link)
			continue
		}
		b.do(press("p.do a.button.main"), see("[aria-labelledby=do]"))
		if n := js[string](b, `document.querySelector(".tiles dd").textContent`); n == "0" {
			t.Errorf("the plan of %s selects nothing", link)
		}
	}
}

// TestReadOnly checks that an operator who may only read sees every page, and sees no form that
// changes anything.
func TestReadOnly(t *testing.T) {
	b := browser(t)
	b.signIn("viewer", "observe")
	for _, p := range pages(b) {
		b.open(p)
		if n := js[int](b, `document.querySelectorAll("main form[method=post]").length`); n != 0 {
			t.Errorf("%s offers %d forms to an operator who may change nothing", p, n)
		}
		if js[bool](b, `/read_only|scope_missing/.test(document.querySelector("main").textContent)`) {
			t.Errorf("%s is not shown to an operator who may only read", p)
		}
	}
}

// TestWithoutScript checks that signing in and planning a replay work in a browser with scripts
// turned off.
func TestWithoutScript(t *testing.T) {
	b := browser(t)
	token, err := dev.token("sre", "operate")
	if err != nil {
		t.Fatal(err)
	}
	command(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.open("/ui/dead-letters?caller=billing")
	b.do(see("#token"), chromedp.SendKeys(chromedp.CSS("#token"), token), press("button.main"), see("header.top"),
		see(`#f-caller[value="billing"]`), press("p.do a.button.main"), see("form.apply"))
}

// TestPictures writes the pictures of the README to the folder in NOTIFY_PICTURES. If
// NOTIFY_PICTURES_ALL is set, it also writes a picture of every page in every look.
func TestPictures(t *testing.T) {
	dir := os.Getenv("NOTIFY_PICTURES")
	if dir == "" {
		t.Skip("NOTIFY_PICTURES is not set; scripts/pictures.sh sets it")
	}
	b := browser(t)
	b.signIn("sre", "operate")
	id, err := dev.ctl("dlq", "ls", "--channel", "sms", "--limit", "1", "-o", "json", "--jq", ".items[0].notification_id")
	if err != nil {
		t.Fatal(err)
	}
	take := func(name, path string, width, height int64, scheme string) {
		t.Helper()
		b.look(width, height, scheme)
		b.open(path)
		if err := os.WriteFile(filepath.Join(dir, name+".png"), get(b, chromedp.CaptureScreenshot()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	take("page", "/ui/", 1280, 860, "light")
	take("page-dead-letters", "/ui/dead-letters", 1280, 860, "dark")
	take("page-id", "/ui/id/"+id, 1280, 560, "light")
	if os.Getenv("NOTIFY_PICTURES_ALL") == "" {
		return
	}
	for _, l := range looks {
		for _, p := range append(pages(b), "/ui/sign-in") {
			name := strings.NewReplacer("/", "_", "?", "_", "&", "_", "=", "_", " ", "-").Replace(p + " " + l.name)
			take(name, p, l.width, l.height*2, l.scheme)
		}
	}
}
