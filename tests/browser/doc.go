// Package browser tests the operator page with Chromium. Its tests sign in and open every page
// in two sizes and two colour schemes. They replay dead letters with the keyboard alone. They
// check the accessibility of every page with axe-core. The package is a separate module,
// because no other package needs its dependencies.
//
// scripts/browser.sh runs the tests. Without Chromium the tests are skipped; with
// NOTIFY_REQUIRE_BROWSER=1 they fail instead. testdata/axe.min.js is axe-core 4.14.1, under the
// Mozilla Public License 2.0; its sources are at github.com/dequelabs/axe-core.
package browser
