package main

import "github.com/spf13/cobra"

// topics are pages of help that belong to no command.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "exit-codes", Short: "What the exit codes mean", Long: `Exit codes are part of the interface:

    0  done; an empty list is done as well
    1  something failed
    2  wrong flags or arguments, refused input, or a missing --yes
    3  some items failed; which ones was printed
    4  no valid token, or it lacks a scope
    5  no such thing
    6  the state forbids it, or an idempotency key came with another body
    7  the server is away, too busy or too slow; try the same command again
    8  a wait ended before the thing did
    9  a check found something
   10  stopped by a guard
   99  a threshold of a load run was missed
  130  Ctrl-C
  143  SIGTERM

After 7, and after an interrupted sending, nobody knows whether the request was
taken. "send" and "trigger create" print the idempotency key to give then: with the
same key it is taken once, however often it is sent, for 24 hours. A batch and a
fan-out know by themselves how far they came. Every other command says what is to
be, and may be repeated as it is; only "caller rotate-secret" makes another secret.
4, 5 and 6 do not change by trying again.`},
		{Use: "formats", Short: "Output formats, filters and times", Long: `Results go to standard output in the format of -o:

  table  for people; columns may change between versions
  json   one indented document; a list is {"items": [...]}
  jsonl  one line of JSON an item; streams such as tail write each at once
  yaml   one document

--jq filters the JSON form of any result without jq being installed, with jsonl each
line:

  notifyctl ls --user ann --jq '.items[] | select(.status == "FAILED") | .notification_id'

Everything else goes to standard error: progress (only to a terminal), remarks
(-q turns them off), and errors. With -o json or jsonl an error is one JSON line:

  {"error":{"code":"...","message":"...","hint":["..."],"exit":5,"retryable":false}}

Times in tables are relative; --time-format iso or local writes them in full, and
the JSON forms are always RFC 3339. Where a time is given, it is RFC 3339, "now",
or a distance such as +10m, -2h or "3d ago".`},
		{Use: "env", Short: "Environment variables and files", Long: `A flag wins over its environment variable, and that over the context.

  NOTIFYCTL_CONTEXT     context to use                            --context
  NOTIFYCTL_SERVER      URL of the server                         --server
  NOTIFYCTL_TOKEN_FILE  file with the token                       --token-file
  NOTIFYCTL_TOKEN       the token itself
  NOTIFYCTL_TIMEOUT     longest wait for an answer, like 1m       --timeout
  NO_COLOR              no colours                                --color never
  TZ                    zone of times written as local
  HTTPS_PROXY, HTTP_PROXY, NO_PROXY   proxies; never for loopback

A server given without a context does not get the current context's token.

Files:

  $XDG_CONFIG_HOME/notifyctl/config.yaml   contexts            (~/.config)
  $XDG_CONFIG_HOME/notifyctl/tokens/       tokens kept by "context add --token-file -"
  $XDG_STATE_HOME/notifyctl/context        the current one     (~/.local/state)
  $XDG_STATE_HOME/notifyctl/campaigns/     how far each "send --fanout" came`},
	}
}
