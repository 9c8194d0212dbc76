package pebble

import (
	"encoding/binary"
	"slices"
)

// Tables; doc.go describes their keys and values.
const (
	tFormat = 0x00
	tNumber = 'o'
	tRows   = 'r'
)

func key(table byte, parts ...string) []byte {
	b := append(make([]byte, 0, 64), table)
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func appendStr(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

// after returns the first key behind every key that begins with prefix.
func after(prefix []byte) []byte {
	b := slices.Clone(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return b[:i+1]
		}
	}
	return nil
}
