package provider

import "github.com/notifyd/notifyd/pkg/notify"

// required reports the first field that is empty. fields are name, value pairs.
func required(provider string, fields ...string) error {
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] == "" {
			return notify.Invalid("missing_setting", provider+"."+fields[i], "a value is needed")
		}
	}
	return nil
}
