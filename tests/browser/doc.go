// Package browser tests the operator page with Chromium. It signs in, opens every page in both
// sizes and both colour schemes, replays dead letters with the keyboard alone, and checks every
// page for accessibility with axe-core. It is a separate module, because no other package needs
// its dependencies.
//
// scripts/browser.sh runs it. Without Chromium the tests are skipped, unless
// NOTIFY_REQUIRE_BROWSER=1. testdata/axe.min.js is axe-core 4.14.1, under the
// Mozilla Public License 2.0; its sources are at github.com/dequelabs/axe-core.
package browser
