package provider

import "github.com/notifyd/notifyd/pkg/notify"

// requireFields returns an error for the first field that is empty. The arguments are pairs: the
// name of a field, and then its value.
func requireFields(provider string, fields ...string) error {
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] == "" {
			return notify.Invalid("missing_setting", provider+"."+fields[i], "must not be empty")
		}
	}
	return nil
}
