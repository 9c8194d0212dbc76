package victim

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"
)

// portBlock finds four free neighbours: dev takes the API's port and the three
// behind it. They lie below those the kernel gives to outgoing connections: a
// client that dials the dead victim would now and then be given the victim's own
// port, and connect to itself.
func portBlock() (int, error) {
	for range 100 {
		n := 10_000 + 4*rand.IntN(5500)
		free := true
		for i := range 4 {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(n+i)))
			if err != nil {
				free = false
				break
			}
			l.Close()
		}
		if free {
			return n, nil
		}
	}
	return 0, errors.New("no four free ports in a row")
}

var httpClient = &http.Client{Timeout: 30 * time.Second}
