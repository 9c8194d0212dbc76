// Package powerloss simulates power cuts under notifyd. The processes under test run on a file
// system that loses everything that was not synced (package lossfs). A trial lets them work,
// kills them with SIGKILL, cuts the power, and starts them again on the remaining data.
// Everything that was acknowledged must still be there.
//
// The tests need Linux, root and /dev/fuse. Without these they are skipped, or fail if
// NOTIFY_REQUIRE_FUSE=1. POWERLOSS_TRIALS sets the number of cuts. POWERLOSS_SEED repeats the
// random moments and torn pages of a run; the timing of the processes still differs.
package powerloss
