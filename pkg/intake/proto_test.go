package intake

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/notifyd/notifyd/pkg/notify"
)

func appendField(b []byte, num protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), v)
}

func appendNumber(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

// protoFanout is a notify.v1.Fanout.
func protoFanout(channel, category string, c notify.Content, campaign string, part, count uint32, column []byte) (b []byte) {
	b = appendField(b, 1, channel)
	b = appendField(b, 2, category)
	b = appendField(b, 3, string(notify.AppendContent(nil, &c)))
	b = appendField(b, 6, campaign)
	b = appendNumber(b, 7, uint64(part))
	b = appendNumber(b, 8, uint64(count))
	return appendField(b, 9, string(column))
}

// appendProtoNote appends an item to a notify.v1.Batch.
func appendProtoNote(b []byte, channel, category, user string, c notify.Content) []byte {
	var n []byte
	n = appendField(n, 1, channel)
	n = appendField(n, 2, category)
	n = appendField(n, 3, user)
	n = appendField(n, 5, string(notify.AppendContent(nil, &c)))
	return protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), n)
}
