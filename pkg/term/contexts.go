package term

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Context is a server to which notifyctl can connect.
type Context struct {
	Server     string `yaml:"server" json:"server"`
	TokenFile  string `yaml:"token_file,omitempty" json:"token_file,omitempty"`
	Simulators string `yaml:"simulators,omitempty" json:"simulators,omitempty"` // control URL of simulated providers
	Protected  bool   `yaml:"protected,omitempty" json:"protected,omitempty"`   // true: notifyctl asks before it changes anything
}

// Contexts holds the configured servers. The name of the current context is stored elsewhere, in
// the state folder. So a shared configuration file can be read-only.
type Contexts struct {
	List map[string]Context `yaml:"contexts" json:"contexts"`

	file, state string
}

// OpenContexts reads $XDG_CONFIG_HOME/notifyctl/config.yaml. If the file is missing, it returns an
// empty list. If the file cannot be parsed, it returns the error bad_config.
func OpenContexts(getenv func(string) string) (*Contexts, error) {
	c := &Contexts{
		List:  map[string]Context{},
		file:  filepath.Join(folder(getenv, "XDG_CONFIG_HOME", ".config"), "notifyctl", "config.yaml"),
		state: filepath.Join(folder(getenv, "XDG_STATE_HOME", ".local/state"), "notifyctl"),
	}
	b, err := os.ReadFile(c.file)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	dec := yaml.NewDecoder(strings.NewReader(string(b)))
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil && err.Error() != "EOF" {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: "bad_config", Msg: fmt.Sprintf("%s: %v", c.file, err)}
	}
	if c.List == nil {
		c.List = map[string]Context{}
	}
	return c, nil
}

func folder(getenv func(string) string, name, fallback string) string {
	if dir := getenv(name); dir != "" {
		return dir
	}
	return filepath.Join(getenv("HOME"), fallback)
}

// File returns the name of the configuration file.
func (c *Contexts) File() string { return c.file }

// Names returns the names of the contexts, sorted.
func (c *Contexts) Names() []string {
	names := make([]string, 0, len(c.List))
	for n := range c.List {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Current returns the name of the current context, or "" if no context was chosen.
func (c *Contexts) Current() string { return c.readState("context") }

// Previous returns the name of the context that was current before the present one.
func (c *Contexts) Previous() string { return c.readState("previous") }

func (c *Contexts) readState(name string) string {
	b, err := os.ReadFile(filepath.Join(c.state, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Use makes the context called name the current context. The context that was current becomes the
// previous context.
func (c *Contexts) Use(name string) error {
	if _, ok := c.List[name]; !ok {
		return c.unknownContext(name)
	}
	if err := os.MkdirAll(c.state, 0o700); err != nil {
		return err
	}
	if was := c.Current(); was != "" && was != name {
		if err := atomicfile.WriteFile(filepath.Join(c.state, "previous"), []byte(was+"\n")); err != nil {
			return err
		}
	}
	return atomicfile.WriteFile(filepath.Join(c.state, "context"), []byte(name+"\n"))
}

// Get returns the context called name. If there is none, it returns an error that suggests a
// similar name.
func (c *Contexts) Get(name string) (Context, error) {
	if x, ok := c.List[name]; ok {
		return x, nil
	}
	return Context{}, c.unknownContext(name)
}

func (c *Contexts) unknownContext(name string) error {
	e := &Error{Exit: ExitNotFound, Err: fmt.Errorf("no context is called %q", name), Next: []string{"notifyctl context ls"}}
	if n := Nearest(name, 2, c.Names()); n != "" {
		e.Err = fmt.Errorf("no context is called %q; did you mean %q?", name, n)
	}
	return e
}

// Set stores a context under a name, and replaces the context that had this name.
func (c *Contexts) Set(name string, x Context) error {
	c.List[name] = x
	return c.save()
}

// Remove deletes a context. If it was the current one, no context is current afterwards.
func (c *Contexts) Remove(name string) error {
	if _, ok := c.List[name]; !ok {
		return c.unknownContext(name)
	}
	delete(c.List, name)
	if err := c.save(); err != nil || c.Current() != name {
		return err
	}
	return os.Remove(filepath.Join(c.state, "context")) // after this no context is current
}

func (c *Contexts) save() error {
	b, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := atomicfile.MkdirAll(filepath.Dir(c.file)); err != nil {
		return err
	}
	return atomicfile.WriteFile(c.file, b)
}
