package intake

import (
	"bytes"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Media types of bodies.
const (
	mediaJSON   = "application/json"
	mediaNDJSON = "application/x-ndjson"
	mediaProto  = "application/x-protobuf"
)

// media returns the body's media type without its parameters; JSON when none
// is given.
func media(contentType string) string {
	m, _, _ := strings.Cut(contentType, ";")
	if m = strings.ToLower(strings.TrimSpace(m)); m == "" {
		return mediaJSON
	}
	return m
}

func unsupported(m string, allowed ...string) error {
	return &notify.Error{
		Kind: notify.KindInvalid, Code: "unsupported_media_type", Field: "Content-Type",
		Msg: "must be " + strings.Join(allowed, " or "),
	}
}

func readerOf(b []byte) io.Reader { return bytes.NewReader(b) }

func validUTF8(b []byte) bool { return utf8.Valid(b) }
