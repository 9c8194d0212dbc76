package app

import (
	"os"
	"runtime"
	"sync"
)

// filesAtOnce is how many system calls on files are under way most of the time at
// full load: the log's, the history's, the store's.
const filesAtOnce = 2

// MakeRoomForFiles lets as many more goroutines run at once as wait for the disk,
// unless GOMAXPROCS says what to do. It is for the commands: a process has one
// setting. A goroutine in a system call keeps its place until the runtime takes
// that back, and one that comes back from the call waits for a place behind all
// that compute: with two places on 2 cores the fan-out of P6 delivered 2.9M/s of
// the 5M/s it took, with four 4.75M/s, at 0.3 cores idle before and none after. It is set
// once: a container whose limit is changed while it runs keeps it.
func MakeRoomForFiles() {
	if os.Getenv("GOMAXPROCS") == "" {
		roomForFiles.Do(func() { runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + filesAtOnce) })
	}
}

var roomForFiles sync.Once
