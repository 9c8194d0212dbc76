// Package browser drives the operator page with Chromium: it signs in, walks every
// page in both sizes and both colour schemes, replays with the keyboard alone, and
// has axe-core look for what people with a screen reader, or weak eyes, would
// stumble over. It is a module of its own: nothing else needs what it needs.
//
// scripts/browser.sh runs it. Without Chromium the tests are skipped, unless
// NOTIFY_REQUIRE_BROWSER=1. testdata/axe.min.js is axe-core 4.14.1, under the
// Mozilla Public License 2.0; its sources are at github.com/dequelabs/axe-core.
package browser
