package freeport

import (
	"fmt"
	"net"
	"testing"
)

// TestFind: what is found can be listened on with those behind it, lies below the
// ports of outgoing connections, and one that is taken is not called free.
func TestFind(t *testing.T) {
	for range 20 {
		p, err := Find(3)
		if err != nil {
			t.Fatal(err)
		}
		if p < lowest || p+3 > 32768 {
			t.Fatalf("port %d", p)
		}
		for _, q := range []int{p, p + 1, p + 2} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", q))
			if err != nil {
				t.Fatal(err)
			}
			if free(q) || allFree(p, 3) {
				t.Errorf("port %d is taken, and called free", q)
			}
			_ = l.Close()
		}
	}
}
