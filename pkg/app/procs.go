package app

import (
	"os"
	"runtime"
	"sync"
)

// filesAtOnce is the typical number of system calls that work on files at the same time, at full
// load. The files are those of the log, the history and the store.
const filesAtOnce = 2

// MakeRoomForFiles raises GOMAXPROCS by filesAtOnce, because about so many goroutines wait for the
// disk. If the environment sets GOMAXPROCS, it changes nothing. Only commands call it, because the
// setting is global.
//
// A goroutine in a system call keeps its processor (P) until the runtime takes the processor away.
// A goroutine that returns from the call must wait for a processor behind all goroutines that
// compute. Example: the fan-out of benchmark P6 on 2 cores, with 5 million receivers accepted per
// second. With GOMAXPROCS 2 it delivered 2.9 million receivers per second, and 0.3 cores were idle.
// With GOMAXPROCS 4 it delivered 4.75 million receivers per second, and no core was idle. The
// setting is made once. If the CPU limit of a container changes while it runs, the setting does not
// change.
func MakeRoomForFiles() {
	if os.Getenv("GOMAXPROCS") == "" {
		roomForFiles.Do(func() { runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + filesAtOnce) })
	}
}

var roomForFiles sync.Once
