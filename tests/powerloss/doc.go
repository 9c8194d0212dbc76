// Package powerloss tests notifyd with simulated power cuts. The process under test runs on a file
// system that loses all unsynced data (package lossfs). A trial lets the process work, kills it
// with SIGKILL, cuts the power, and starts the process again on the remaining data. Everything
// that the process has acknowledged must still exist.
//
// The tests need Linux, root and /dev/fuse. Otherwise they are skipped; with
// NOTIFY_REQUIRE_FUSE=1 they fail. POWERLOSS_TRIALS sets the number of cuts. POWERLOSS_SEED
// repeats the random choices of a run: the moments of the cuts and the lost pages. The timing of
// the process is still different in each run.
package powerloss
