package victim

import (
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"
)

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// portBlock finds four free neighbours: dev takes the API's port and the three
// behind it.
func portBlock() (int, error) {
	for range 100 {
		port, err := freePort()
		if err != nil {
			return 0, err
		}
		n, _ := strconv.Atoi(port)
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
