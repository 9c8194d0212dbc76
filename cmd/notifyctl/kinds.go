package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

func channelNames() (names []string) {
	for _, c := range notify.Channels {
		names = append(names, c.String())
	}
	return names
}

func categoryNames() (names []string) {
	for _, c := range notify.Categories {
		names = append(names, c.String())
	}
	return names
}

// checkKinds refuses a channel or category that does not exist; empty is fine.
func checkKinds(channel, category string) error {
	if _, ok := notify.ParseChannel(channel); channel != "" && !ok {
		return term.Usage("--channel %q: channels are %s%s", channel, strings.Join(channelNames(), ", "), nearest(channel, channelNames()))
	}
	if _, ok := notify.ParseCategory(category); category != "" && !ok {
		return term.Usage("--category %q: categories are %s%s", category, strings.Join(categoryNames(), ", "), nearest(category, categoryNames()))
	}
	return nil
}

func nearest(word string, names []string) string {
	for _, n := range names {
		if term.Distance(n, word) < 3 {
			return "; did you mean " + n + "?"
		}
	}
	return ""
}

// completeKinds offers channels and categories to the shell.
func completeKinds(c *cobra.Command) {
	complete(c, "channel", channelNames())
	complete(c, "category", categoryNames())
}
