// Package reconcile finds what no longer fits together, of notifications and of
// triggers, in one report, and repairs what the report lists.
//
// What is wrong with notifications an audit says (pkg/audit): it looks at each
// suspect again until it stands still. What is wrong with triggers says
// pkg/trigger. Here both become findings of one vocabulary (see the classes).
//
// A notification is repaired by one more record of its original envelope, in the
// topic and partition of the first. The worker meets it under the key of its
// outcome row, so the record does whatever the row has not done: a claim is
// resumed under the policy of what is ambiguous, a finished row hands on again
// what it handed on, under the same keys, and each of those records does the
// same. What has an outcome is dropped as a copy. So a receiver is called again
// only where the row of its own call is missing or unfinished.
//
// Where a record was passed and no row says what became of it, nobody knows
// whether it was called: a worker passes a record only behind its row, so the row
// was lost. It is claimed as a whole before its record is appended, and the
// policy of what is ambiguous speaks for all of it.
package reconcile
