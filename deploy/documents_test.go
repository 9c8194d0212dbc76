package deploy

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	inlineCode = regexp.MustCompile("`([^`\n]+)`")
	codeLine   = regexp.MustCompile(`(?m)^(?:    |\$ )(\S.*)$`)
	ourCommand = regexp.MustCompile(`(?:^|[;&(] ?|[A-Z]=\S+ )((?:notifyd|notifyctl) .*)$`)
	usageLine  = regexp.MustCompile(`(?m)^Usage:\n\s+(.*)$`)
	plainWord  = regexp.MustCompile(`^[a-z][a-z-]*$`)
)

// TestCommandsOfDocuments checks that every notifyd and notifyctl command in README.md and
// docs/ exists, with its flags.
func TestCommandsOfDocuments(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../docs/*.md")
	must(t, err)
	seen := map[string]bool{}
	for _, doc := range append(pages, "../README.md", "../CONTRIBUTING.md", "../SECURITY.md", "../DESIGN.md") {
		for _, args := range commandsIn(string(read(t, doc))) {
			if line := strings.Join(args, " "); !seen[line] {
				seen[line] = true
				if problem := commandProblem(t, args); problem != "" {
					t.Errorf("%s: %s: %s", doc, line, problem)
				}
			}
		}
	}
	if len(seen) < 100 {
		t.Errorf("only %d commands are found", len(seen))
	}
	for _, bad := range []string{"notifyctl nothing", "notifyctl dlq nothing", "notifyctl send --nothing", "notifyd config nothing"} {
		if commandProblem(t, strings.Fields(bad)) == "" {
			t.Errorf("%s passes", bad)
		}
	}
}

// commandsIn returns the commands of our programs in the code of a document, as words.
func commandsIn(text string) (list [][]string) {
	var code []string
	for _, m := range inlineCode.FindAllStringSubmatch(text, -1) {
		code = append(code, m[1])
	}
	for _, m := range codeLine.FindAllStringSubmatch(text, -1) {
		code = append(code, m[1])
	}
	for _, c := range code {
		for _, part := range splitCommands(c) {
			if m := ourCommand.FindStringSubmatch(strings.TrimSpace(part)); m != nil {
				if args := shellWords(m[1]); len(args) > 1 {
					list = append(list, args)
				}
			}
		}
	}
	return list
}

// splitCommands divides a line of shell at ; & and | that are not quoted, and drops its comment.
func splitCommands(line string) (parts []string) {
	quote, start := rune(0), 0
	for i, r := range line {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case r == '\'' || r == '"':
			quote = r
		case r == ';' || r == '&' || r == '|' || r == ')':
			parts = append(parts, line[start:i])
			start = i + 1
		case r == '#' && i > 0 && line[i-1] == ' ':
			return append(parts, line[start:i])
		}
	}
	return append(parts, line[start:])
}

// shellWords divides a command into words, without its redirections.
func shellWords(command string) (words []string) {
	quote, word, open := rune(0), strings.Builder{}, false
	flush := func() {
		if open {
			words = append(words, word.String())
		}
		word.Reset()
		open = false
	}
	for _, r := range command {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, open = r, true
		case quote == 0 && (r == '>' || r == '<'):
			flush()
			return words
		case quote == 0 && r == ' ':
			flush()
		case quote == 0 && r == '\\':
		default:
			word.WriteRune(r)
			open = true
		}
	}
	flush()
	if len(words) > 0 && words[len(words)-1] == "..." { // more of the same is left out
		words = words[:len(words)-1]
	}
	return words
}

// commandProblem asks a command for its help and returns what is wrong with it, or "".
func commandProblem(t *testing.T, args []string) string {
	t.Helper()
	dir, err := programs()
	must(t, err)
	call := append(slices.Clone(args[1:]), "--help")
	if args[1] == "help" {
		call = args[1:]
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, args[0]), call...)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return strings.TrimSpace(string(out))
	}
	if args[1] == "help" {
		return ""
	}
	m := usageLine.FindStringSubmatch(string(out))
	if m == nil {
		return "its help has no usage"
	}
	usage := strings.Fields(m[1])
	depth := 1 // words of the command that the help is of
	for depth < len(usage) && plainWord.MatchString(usage[depth]) {
		depth++
	}
	rest := args[1:]
	for _, word := range usage[1:depth] {
		i := slices.Index(rest, word)
		if i < 0 {
			return "it gets the help of " + strings.Join(usage[:depth], " ")
		}
		rest = rest[i+1:]
	}
	takesWords := len(usage) > depth && usage[depth] != "[flags]"
	isGroup := strings.Contains(string(out), " [command]")
	if len(rest) > 0 && plainWord.MatchString(rest[0]) && isGroup && !takesWords {
		return strings.Join(usage[:depth], " ") + " has no command " + rest[0]
	}
	return ""
}
