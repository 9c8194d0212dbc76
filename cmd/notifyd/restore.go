package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/backup"
	"github.com/notifyd/notifyd/pkg/term"
)

func newRestore(p *program) *cobra.Command {
	var data string
	var check bool
	c := &cobra.Command{
		Use: "restore FILE", Short: "Make a data folder of a backup", Args: cobra.ExactArgs(1),
		Long: `restore unpacks what "notifyctl backup" saved as a new data folder, after every
file was found to be what was backed up. The folder must not exist or be empty.

What a server did after the backup was made is not in it: what was delivered
since then is delivered again if it was under way at that time, and what was
cancelled since then is not cancelled. Never run a restored folder beside the
server it came from: both would deliver.

The callers' signing secrets in a backup are sealed, and the key is not in it: the
key file of the server it came from (secrets.key_file, or DIR.secrets-key beside its
data folder DIR) has to be there before the first start.`,
		Example: `  notifyd restore nightly.backup --check
  notifyd restore nightly.backup --data-dir /srv/notifyd
  notifyd serve --data-dir /srv/notifyd

  # of "notifyd dev": its data is in the folder data below its own
  notifyd restore dev.backup --data-dir restored/data
  notifyd dev --data-dir restored`,
		RunE: func(c *cobra.Command, args []string) error {
			if (data == "") != check {
				return term.Usage("say where to: --data-dir DIR; or --check only reads the file")
			}
			f, err := os.Open(args[0])
			if err != nil {
				return term.Usage("%v", err)
			}
			defer f.Close()
			if check {
				m, err := backup.Verify(c.Context(), f)
				if err != nil {
					return err
				}
				fmt.Fprintf(p.out, "%s is whole: %d files, %s bytes, store %s, made %s by notifyd %s\n",
					args[0], len(m.Files), term.Count(m.Bytes), term.Clean(m.StoreID), m.Created.Format(time.RFC3339), term.Clean(m.Version))
				return nil
			}
			m, err := backup.Restore(c.Context(), f, data)
			if err != nil {
				return err
			}
			fmt.Fprintf(p.out, "restored %d files, %s bytes, store %s, as of %s, to %s\n",
				len(m.Files), term.Count(m.Bytes), term.Clean(m.StoreID), m.Created.Format(time.RFC3339), data)
			if advice := app.KeyAdvice(data, m.Key); advice != "" {
				fmt.Fprintln(p.out, term.Clean(advice))
			}
			return nil
		},
	}
	c.Flags().StringVar(&data, "data-dir", "", "the folder to make")
	c.Flags().BoolVar(&check, "check", false, "only say whether FILE is whole")
	return c
}
