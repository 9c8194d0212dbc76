package trigger

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/notifyd/notifyd/pkg/engine"
)

// TopicDLQ is the topic of triggers that failed for good.
const TopicDLQ = "triggers-dlq"

// DeadLetter is a record of triggers-dlq, schema version 1. docs/triggers-dlq.schema.json contains
// the schema.
type DeadLetter struct {
	Version  int    `json:"version"`
	ID       string `json:"id"`
	Caller   string `json:"caller"`
	URL      string `json:"callback_url"` // without the query, which may contain a secret
	Reason   string `json:"reason"`
	Class    string `json:"class"`  // class of the last call; "none": no call was made
	Status   int    `json:"status"` // HTTP status of the last call; 0: no answer
	Attempts int    `json:"attempts"`
	Gen      uint32 `json:"generation"`
	Epoch    uint32 `json:"epoch"`
	Created  int64  `json:"created_ms"`
	FireAt   int64  `json:"fire_at_ms"`
	Failed   int64  `json:"failed_ms"`
	Trace    string `json:"traceparent,omitempty"` // W3C traceparent of the request that made the trigger
}

// noCall is the class of a trigger that failed without a call.
const noCall = "none"

// DeadRecord is a record for triggers-dlq. Key is the id of the trigger. After a crash the same
// record may be written twice, with the same key.
type DeadRecord struct {
	Key, Value []byte
}

// DeadLog appends records to triggers-dlq. If Append returns nil, all records are durable.
type DeadLog interface {
	Append(ctx context.Context, rs []DeadRecord) error
}

// deadRecordOf makes the dead letter of a trigger. It uses only the row, so a repeat after a crash
// writes the same record.
func deadRecordOf(t *engine.Trigger) DeadRecord {
	value, _ := json.Marshal(deadLetterOf(t)) // strings and numbers always marshal
	return DeadRecord{Key: []byte(t.ID), Value: value}
}

func deadLetterOf(t *engine.Trigger) DeadLetter {
	url, _, _ := strings.Cut(t.URL, "?")
	l := DeadLetter{
		Version: 1, ID: t.ID, Caller: t.Caller, URL: url, Reason: t.Reason, Class: noCall, Attempts: t.Attempts,
		Gen: t.Gen, Epoch: t.Epoch, Created: t.Created, FireAt: t.FireAt, Failed: t.Ended, Trace: t.Trace,
	}
	if n := len(t.Log); n > 0 {
		l.Class, l.Status = t.Log[n-1].Class, t.Log[n-1].Status
	}
	return l
}
