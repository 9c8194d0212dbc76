// Package powerloss cuts the power under notifyd. The processes under test run
// on a file system that forgets what was not synced (package lossfs); a trial
// lets them work, kills them with SIGKILL, cuts, and starts them again on what
// is left. Everything that was acknowledged must be there.
//
// The tests need Linux, root and /dev/fuse; without them they are skipped,
// which NOTIFY_REQUIRE_FUSE=1 turns into a failure. POWERLOSS_TRIALS sets the
// number of cuts, POWERLOSS_SEED repeats a run's moments and torn pages, as far
// as two processes can be repeated.
package powerloss
