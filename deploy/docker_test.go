package deploy

import (
	"encoding/json"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/app"
	duties "github.com/notifyd/notifyd/pkg/cluster"
)

func onlyFile(name string) error {
	_, err := os.Stat(name)
	return err
}

type instruction struct{ name, args string }

// instructions of a Dockerfile, with continued lines joined.
func instructions(t *testing.T) (out []instruction) {
	t.Helper()
	text := strings.ReplaceAll(string(read(t, "Dockerfile")), "\\\n", " ")
	known := []string{"FROM", "WORKDIR", "COPY", "RUN", "ARG", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
	for _, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, args, _ := strings.Cut(line, " ")
		if !slices.Contains(known, name) || strings.TrimSpace(args) == "" {
			t.Errorf("instruction %q", line)
		}
		out = append(out, instruction{name, strings.TrimSpace(args)})
	}
	return out
}

// list is the exec form; the shell form has no shell here.
func list(t *testing.T, s string) (out []string) {
	t.Helper()
	if err := json.Unmarshal([]byte(s), &out); err != nil {
		t.Errorf("%s is not in exec form: %v", s, err)
	}
	return out
}

func TestDockerfile(t *testing.T) {
	t.Parallel()
	var stages []string
	last := map[string]string{}
	for _, in := range instructions(t) {
		switch in.name {
		case "FROM":
			f := strings.Fields(in.args)
			last = map[string]string{"FROM": f[0]}
			if len(f) == 3 && f[1] == "AS" {
				stages = append(stages, f[2])
			} else if len(f) != 1 {
				t.Errorf("FROM %s", in.args)
			}
		case "COPY":
			from := ""
			args := strings.Fields(in.args)
			for len(args) > 0 && strings.HasPrefix(args[0], "--") {
				if v, ok := strings.CutPrefix(args[0], "--from="); ok {
					from = v
				}
				args = args[1:]
			}
			if from != "" && !slices.Contains(stages, from) {
				t.Errorf("COPY from %s, of %q", from, stages)
			}
			if from == "" && args[0] != "." {
				for _, a := range args[:len(args)-1] {
					must(t, onlyFile("../"+a))
				}
			}
			last["COPY"] += " " + in.args
		case "RUN":
			if last["FROM"] == "scratch" {
				t.Errorf("RUN %s where there is nothing to run it", in.args)
			}
			last[in.name] += " " + in.args
		default:
			last[in.name] = in.args
		}
		if in.name == "RUN" && strings.Contains(in.args, "go build") && !strings.Contains(in.args, "CGO_ENABLED=0") {
			t.Error("it is not static")
		}
	}
	if uid, err := strconv.Atoi(strings.Split(last["USER"], ":")[0]); last["FROM"] != "scratch" || err != nil || uid < 1 {
		t.Errorf("the image is of %s, as user %s: want scratch and a number, for Kubernetes knows no names", last["FROM"], last["USER"])
	}
	enter := list(t, last["ENTRYPOINT"])
	if len(enter) != 1 || !strings.Contains(last["COPY"], "/out"+enter[0]+" ") {
		t.Errorf("enters %q, which is not copied", enter)
	}
	checkCommand(t, "CMD", enter[0], list(t, last["CMD"]))
	health := last["HEALTHCHECK"]
	check := list(t, health[strings.Index(health, "CMD ")+4:])
	checkCommand(t, "HEALTHCHECK", check[0], check[1:])
	if i := slices.Index(check, "--server"); i < 0 || check[i+1] != "http://"+app.Default().API.Admin {
		t.Errorf("HEALTHCHECK asks %q; the admin listener is at %s", check, app.Default().API.Admin)
	}
	// The build has the compiler that go.mod asks for.
	want := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(read(t, "../go.mod")))[1]
	if !strings.Contains(string(read(t, "Dockerfile")), "FROM golang:"+want+" ") {
		t.Errorf("the build is not of Go %s", want)
	}
	// What is left out of the context is not needed: go:embed and packages are in it.
	var in []string
	for _, line := range strings.Split(string(read(t, "Dockerfile.dockerignore")), "\n") {
		if name, ok := strings.CutPrefix(line, "!"); ok {
			must(t, onlyFile("../"+name))
			in = append(in, name)
		}
	}
	for _, dir := range []string{"go.mod", "go.sum", "cmd", "pkg", "docs", "dashboards", "scenarios"} {
		if !slices.Contains(in, dir) {
			t.Errorf("the build needs %s", dir)
		}
	}
}

// compose is what compose.yaml uses of the Compose Specification.
type compose struct {
	Name     string
	Base     any `yaml:"x-notifyd"`
	Services map[string]composeService
	Configs  map[string]struct{ File string }
	Secrets  map[string]struct{ File string }
	Volumes  map[string]struct{}
}

type composeService struct {
	Image           string
	Build           struct{ Context, Dockerfile string }
	Restart         string
	ReadOnly        bool     `yaml:"read_only"`
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
	StopGracePeriod string   `yaml:"stop_grace_period"`
	Entrypoint      []string
	Command         []string
	Environment     map[string]string
	Configs         []struct{ Source, Target string }
	Secrets         []string
	Volumes         []string
	Ports           []string
	DependsOn       map[string]struct{ Condition string } `yaml:"depends_on"`
	Deploy          struct{ Replicas int }
	Healthcheck     struct {
		Disable           bool
		Test              []string
		Interval, Timeout string
		Retries           int
	}
}

func TestCompose(t *testing.T) {
	t.Parallel()
	var c compose
	must(t, strictly(read(t, "compose/compose.yaml"), &c))
	cfg := checkConfig(t, "compose/notifyd.yaml", read(t, "compose/notifyd.yaml"))
	var roles []string
	secrets := map[string]bool{}
	for name, s := range c.Services {
		for _, x := range s.Secrets {
			if c.Secrets[x].File == "" {
				t.Errorf("%s: no secret %s", name, x)
			}
			secrets[x] = true
		}
		for _, x := range s.Configs {
			must(t, onlyFile(path.Join("compose", c.Configs[x.Source].File)))
		}
		for on, how := range s.DependsOn {
			other, ok := c.Services[on]
			healthy := how.Condition == "service_healthy" && len(other.Healthcheck.Test) > 0
			ends := how.Condition == "service_completed_successfully" && other.Restart == "on-failure"
			if !ok || !healthy && !ends {
				t.Errorf("%s depends on %s: %s", name, on, how.Condition)
			}
		}
		for _, v := range s.Volumes {
			if from, _, named := strings.Cut(v, ":"); named && !hasKey(c.Volumes, from) {
				t.Errorf("%s: no volume %s", name, from)
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s is published to everybody: %s", name, p)
			}
		}
		if s.Image != "notifyd" {
			continue
		}
		checkCommand(t, name, "notifyd", s.Command)
		if i := slices.Index(s.Command, "--config"); i < 0 || s.Configs[0].Target != s.Command[i+1] {
			t.Errorf("%s: %q without its configuration", name, s.Command)
		}
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.SecurityOpt) == 0 {
			t.Errorf("%s may too much", name)
		}
		stop, err := time.ParseDuration(s.StopGracePeriod)
		must(t, err)
		checkStop(t, name, &cfg, 0, stop)
		if i := slices.Index(s.Command, "--role"); i >= 0 {
			roles = append(roles, s.Command[i+1])
		}
	}
	for _, role := range duties.Roles {
		if role != duties.RoleAll && !slices.Contains(roles, role) {
			t.Errorf("no service has the role %s", role)
		}
	}
	if c.Services["scheduler"].Deploy.Replicas != 2 {
		t.Error("schedulers are a pair")
	}
	if len(secrets) != len(c.Secrets) {
		t.Errorf("secrets %v of %v are used", secrets, c.Secrets)
	}
	// The servers it names are services.
	for _, server := range slices.Concat(cfg.Kafka.Brokers, cfg.Cassandra.Hosts, cfg.Redis.Addresses) {
		host, _, _ := strings.Cut(server, ":")
		if _, ok := c.Services[host]; !ok {
			t.Errorf("no service %s", host)
		}
	}
	for _, file := range []string{cfg.Auth.SecretFile, cfg.Redis.PasswordFile, cfg.Postgres.PasswordFile} {
		if dir, name := path.Split(file); dir != "/run/secrets/" || c.Secrets[name].File == "" {
			t.Errorf("no secret for %q", file)
		}
	}
}

func hasKey[K comparable, V any](m map[K]V, k K) bool {
	_, ok := m[k]
	return ok
}
