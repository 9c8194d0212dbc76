package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	yaml "go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/pkg/app"
	duties "github.com/notifyd/notifyd/pkg/cluster"
)

// The kinds that are used, with the fields that are used of them: a field that is
// misspelled, or in the wrong place, is unknown.
type (
	labels map[string]string
	meta   struct {
		Name, Namespace     string
		Labels, Annotations labels
	}
	head struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
	}
	selector struct {
		MatchLabels labels `yaml:"matchLabels"`
	}
	deployment struct {
		head `yaml:",inline"`
		Spec struct {
			Replicas             int
			RevisionHistoryLimit int `yaml:"revisionHistoryLimit"`
			Strategy             struct {
				Type          string
				RollingUpdate struct {
					MaxSurge       int `yaml:"maxSurge"`
					MaxUnavailable int `yaml:"maxUnavailable"`
				} `yaml:"rollingUpdate"`
			}
			Selector selector
			Template template
		}
	}
	job struct {
		head `yaml:",inline"`
		Spec struct {
			CompletionMode string `yaml:"completionMode"`
			Completions    int
			Parallelism    int
			BackoffLimit   int `yaml:"backoffLimit"`
			Deadline       int `yaml:"activeDeadlineSeconds"`
			TTL            int `yaml:"ttlSecondsAfterFinished"`
			Template       template
		}
	}
	template struct {
		Metadata meta
		Spec     struct {
			ServiceAccountName string `yaml:"serviceAccountName"`
			AutomountToken     *bool  `yaml:"automountServiceAccountToken"`
			EnableServiceLinks *bool  `yaml:"enableServiceLinks"`
			RestartPolicy      string `yaml:"restartPolicy"`
			Grace              int    `yaml:"terminationGracePeriodSeconds"`
			Spread             []struct {
				MaxSkew           int      `yaml:"maxSkew"`
				TopologyKey       string   `yaml:"topologyKey"`
				WhenUnsatisfiable string   `yaml:"whenUnsatisfiable"`
				LabelSelector     selector `yaml:"labelSelector"`
			} `yaml:"topologySpreadConstraints"`
			SecurityContext struct {
				RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
				RunAsUser      int                   `yaml:"runAsUser"`
				RunAsGroup     int                   `yaml:"runAsGroup"`
				FSGroup        int                   `yaml:"fsGroup"`
				SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
			} `yaml:"securityContext"`
			Containers []container
			Volumes    []volume
		}
	}
	container struct {
		Name, Image   string
		Command, Args []string
		Env           []struct {
			Name, Value string
			ValueFrom   struct {
				FieldRef struct {
					FieldPath string `yaml:"fieldPath"`
				} `yaml:"fieldRef"`
				ResourceFieldRef struct{ Resource string } `yaml:"resourceFieldRef"`
			} `yaml:"valueFrom"`
		}
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		StartupProbe   *probe `yaml:"startupProbe"`
		LivenessProbe  *probe `yaml:"livenessProbe"`
		ReadinessProbe *probe `yaml:"readinessProbe"`
		Lifecycle      struct {
			PreStop struct{ Sleep struct{ Seconds int } } `yaml:"preStop"`
		}
		Resources struct {
			Requests struct{ CPU, Memory string }
			Limits   struct{ CPU, Memory string }
		}
		SecurityContext struct {
			Escalation   *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRoot bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities struct{ Drop []string }
		} `yaml:"securityContext"`
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			SubPath   string `yaml:"subPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	probe struct {
		HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
		PeriodSeconds    int                         `yaml:"periodSeconds"`
		TimeoutSeconds   int                         `yaml:"timeoutSeconds"`
		FailureThreshold int                         `yaml:"failureThreshold"`
	}
	volume struct {
		Name      string
		ConfigMap struct{ Name string } `yaml:"configMap"`
		Secret    struct {
			SecretName  string `yaml:"secretName"`
			DefaultMode int    `yaml:"defaultMode"`
		}
		EmptyDir *struct {
			SizeLimit string `yaml:"sizeLimit"`
		} `yaml:"emptyDir"`
	}
	budget struct {
		head `yaml:",inline"`
		Spec struct {
			MinAvailable   int `yaml:"minAvailable"`
			MaxUnavailable int `yaml:"maxUnavailable"`
			Selector       selector
		}
	}
	service struct {
		head `yaml:",inline"`
		Spec struct {
			Selector labels
			Ports    []struct {
				Name       string
				Port       int
				TargetPort string `yaml:"targetPort"`
			}
		}
	}
	networkPolicy struct {
		head `yaml:",inline"`
		Spec struct {
			PodSelector podSelector `yaml:"podSelector"`
			PolicyTypes []string    `yaml:"policyTypes"`
			Ingress     []struct {
				From  []networkPeer
				Ports []networkPort
			}
			Egress []struct {
				To    []networkPeer
				Ports []networkPort
			}
		}
	}
	podSelector struct {
		MatchLabels      labels `yaml:"matchLabels"`
		MatchExpressions []struct {
			Key, Operator string
			Values        []string
		} `yaml:"matchExpressions"`
	}
	networkPeer struct {
		NamespaceSelector *selector    `yaml:"namespaceSelector"`
		PodSelector       *podSelector `yaml:"podSelector"`
		IPBlock           *struct {
			CIDR   string
			Except []string
		} `yaml:"ipBlock"`
	}
	networkPort struct {
		Port     int
		Protocol string
	}
	configMap struct {
		head `yaml:",inline"`
		Data map[string]string
	}
	secret struct {
		head       `yaml:",inline"`
		Type       string
		StringData map[string]string `yaml:"stringData"`
	}
	account struct {
		head           `yaml:",inline"`
		AutomountToken *bool `yaml:"automountServiceAccountToken"`
	}
	namespace struct {
		head `yaml:",inline"`
	}
)

// cluster is all manifests together.
type cluster struct {
	deployments []deployment
	jobs        []job
	budgets     []budget
	services    []service
	policies    []networkPolicy
	config      configMap
	secret      secret
	names       []string // kind/name
}

func readCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{}
	files, err := filepath.Glob("kubernetes/*.yaml")
	must(t, err)
	for _, f := range files {
		d := yaml.NewDecoder(bytes.NewReader(read(t, f)))
		for n := 1; ; n++ {
			var node yaml.Node
			if err := d.Decode(&node); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			b, err := yaml.Marshal(&node)
			must(t, err)
			where := fmt.Sprintf("%s, document %d", f, n)
			c.add(t, where, b)
		}
	}
	return c
}

func (c *cluster) add(t *testing.T, where string, b []byte) {
	t.Helper()
	var h struct {
		head `yaml:",inline"`
		Rest map[string]any `yaml:",inline"`
	}
	must(t, yaml.Unmarshal(b, &h))
	take := func(version string, v any) {
		t.Helper()
		if h.APIVersion != version {
			t.Errorf("%s: %s is of %s, not of %q", where, h.Kind, version, h.APIVersion)
		}
		if err := strictly(b, v); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
	switch h.Kind {
	case "Deployment":
		c.deployments = append(c.deployments, deployment{})
		take("apps/v1", &c.deployments[len(c.deployments)-1])
	case "Job":
		c.jobs = append(c.jobs, job{})
		take("batch/v1", &c.jobs[len(c.jobs)-1])
	case "PodDisruptionBudget":
		c.budgets = append(c.budgets, budget{})
		take("policy/v1", &c.budgets[len(c.budgets)-1])
	case "Service":
		c.services = append(c.services, service{})
		take("v1", &c.services[len(c.services)-1])
	case "NetworkPolicy":
		c.policies = append(c.policies, networkPolicy{})
		take("networking.k8s.io/v1", &c.policies[len(c.policies)-1])
	case "ConfigMap":
		take("v1", &c.config)
	case "Secret":
		take("v1", &c.secret)
	case "ServiceAccount":
		take("v1", &account{})
	case "Namespace":
		take("v1", &namespace{})
	default:
		t.Errorf("%s: kind %q", where, h.Kind)
	}
	if h.Kind != "Namespace" && h.Metadata.Namespace != "notifyd" {
		t.Errorf("%s: namespace %q", where, h.Metadata.Namespace)
	}
	name := h.Kind + "/" + h.Metadata.Name
	if h.Metadata.Name == "" || slices.Contains(c.names, name) {
		t.Errorf("%s: name %q is empty or taken", where, name)
	}
	c.names = append(c.names, name)
}

// within reports whether a selector finds something with these labels.
func within(sel, of labels) bool {
	for k, v := range sel {
		if of[k] != v {
			return false
		}
	}
	return len(sel) > 0
}

func TestKubernetes(t *testing.T) {
	t.Parallel()
	c := readCluster(t)
	cfg := checkConfig(t, "config.yaml", []byte(c.config.Data["notifyd.yaml"]))
	var roles []string
	for i := range c.deployments {
		d := &c.deployments[i]
		name, pod := d.Metadata.Name, &d.Spec.Template
		if !within(d.Spec.Selector.MatchLabels, pod.Metadata.Labels) {
			t.Errorf("%s: its selector does not find its pods", name)
		}
		if d.Spec.Strategy.RollingUpdate.MaxUnavailable != 0 || d.Spec.Strategy.RollingUpdate.MaxSurge < 1 {
			t.Errorf("%s: an update takes from what serves", name)
		}
		c.checkPod(t, name, pod)
		box := &pod.Spec.Containers[0]
		i := slices.Index(box.Args, "--role")
		if i < 0 || "notifyd-"+box.Args[i+1] != name {
			t.Fatalf("%s: runs %q", name, box.Args)
		}
		role := box.Args[i+1]
		roles = append(roles, role)
		checkProbes(t, name, box)
		checkStop(t, name, &cfg, time.Duration(box.Lifecycle.PreStop.Sleep.Seconds)*time.Second, time.Duration(pod.Spec.Grace)*time.Second)
		if box.Lifecycle.PreStop.Sleep.Seconds < 1 {
			t.Errorf("%s: balancers still send when it stops", name)
		}
		c.checkBudget(t, d)
		if role == "scheduler" && (d.Spec.Replicas != 2 || pod.Spec.Spread[0].WhenUnsatisfiable != "DoNotSchedule") {
			t.Errorf("%s: a pair on two nodes", name)
		}
	}
	for _, role := range duties.Roles {
		if role != duties.RoleAll && !slices.Contains(roles, role) {
			t.Errorf("no Deployment has the role %s", role)
		}
	}
	for i := range c.jobs {
		c.checkPod(t, c.jobs[i].Metadata.Name, &c.jobs[i].Spec.Template)
	}
	for _, s := range c.services {
		found := slices.IndexFunc(c.deployments, func(d deployment) bool { return within(s.Spec.Selector, d.Spec.Template.Metadata.Labels) })
		if found < 0 {
			t.Fatalf("Service %s finds nobody", s.Metadata.Name)
		}
		for _, p := range s.Spec.Ports {
			if !hasPort(&c.deployments[found].Spec.Template.Spec.Containers[0], p.TargetPort) {
				t.Errorf("Service %s: no port %s", s.Metadata.Name, p.TargetPort)
			}
		}
	}
	// Files that the configuration names are in the Secret, and none besides.
	named := regexp.MustCompile(`/etc/notifyd/secrets/([\w.-]+)`).FindAllStringSubmatch(c.config.Data["notifyd.yaml"], -1)
	used := map[string]bool{}
	for _, n := range named {
		used[n[1]] = true
	}
	for name := range used {
		if _, ok := c.secret.StringData[name]; !ok {
			t.Errorf("the Secret has no %s", name)
		}
	}
	if len(used) != len(c.secret.StringData) {
		t.Errorf("the Secret has %d values, %d are used", len(c.secret.StringData), len(used))
	}
}

// finds reports whether a selector finds pods with these labels; an empty one finds all.
func (s *podSelector) finds(of labels) bool {
	for k, v := range s.MatchLabels {
		if of[k] != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		if e.Operator != "In" || !slices.Contains(e.Values, of[e.Key]) {
			return false
		}
	}
	return true
}

// networkOf returns the ports at which the policies let others connect to pods with
// these labels, and the ports of other pods and of the internet that those pods reach.
func (c *cluster) networkOf(t *testing.T, name string, of labels) (enters, inside, internet []int) {
	t.Helper()
	closed := map[string]bool{}
	for i := range c.policies {
		p := &c.policies[i]
		if !p.Spec.PodSelector.finds(of) {
			continue
		}
		for _, way := range p.Spec.PolicyTypes {
			closed[way] = true
		}
		for _, rule := range p.Spec.Ingress {
			for _, from := range rule.From {
				if from.IPBlock != nil || from.NamespaceSelector == nil || len(from.NamespaceSelector.MatchLabels) == 0 && from.PodSelector == nil {
					t.Errorf("%s: %s lets anything in", name, p.Metadata.Name)
				}
			}
			if len(rule.From) == 0 || len(rule.Ports) == 0 {
				t.Errorf("%s: %s lets anything in", name, p.Metadata.Name)
			}
			for _, port := range rule.Ports {
				enters = append(enters, port.Port)
			}
		}
		for _, rule := range p.Spec.Egress {
			if len(rule.To) == 0 || len(rule.Ports) == 0 {
				t.Errorf("%s: %s lets everything out", name, p.Metadata.Name)
			}
			for _, port := range rule.Ports {
				if rule.To[0].IPBlock != nil {
					internet = append(internet, port.Port)
				} else {
					inside = append(inside, port.Port)
				}
			}
		}
	}
	if !closed["Ingress"] || !closed["Egress"] {
		t.Errorf("%s: open where no rule is: %v", name, closed)
	}
	return enters, inside, internet
}

// TestNetworkPolicies: what may connect to each pod, and where each may connect to.
func TestNetworkPolicies(t *testing.T) {
	t.Parallel()
	c := readCluster(t)
	engines := []int{53, 53, 6379} // Redis is behind its sentinels
	for _, m := range regexp.MustCompile(`[\w-]+\.(?:kafka|cassandra|redis|postgres):(\d+)`).FindAllStringSubmatch(c.config.Data["notifyd.yaml"], -1) {
		port, err := strconv.Atoi(m[1])
		must(t, err)
		if !slices.Contains(engines, port) {
			engines = append(engines, port)
		}
	}
	slices.Sort(engines)
	check := func(name string, of labels, enters, inside, internet []int) {
		t.Helper()
		gotEnters, gotInside, gotInternet := c.networkOf(t, name, of)
		slices.Sort(gotEnters)
		slices.Sort(gotInside)
		if !slices.Equal(gotEnters, enters) || !slices.Equal(gotInside, inside) || !slices.Equal(gotInternet, internet) {
			t.Errorf("%s: others enter at %v, want %v; it reaches %v, want %v, and on the internet %v, want %v", name, gotEnters, enters, gotInside, inside, gotInternet, internet)
		}
	}
	for i := range c.deployments {
		name, of := c.deployments[i].Metadata.Name, c.deployments[i].Spec.Template.Metadata.Labels
		switch name {
		case "notifyd-api":
			check(name, of, []int{7420, 7421}, engines, []int{443})
		case "notifyd-worker", "notifyd-dispatcher":
			check(name, of, []int{7421}, engines, []int{443})
		default:
			check(name, of, []int{7421}, engines, nil)
		}
	}
	for i := range c.jobs {
		name, of := c.jobs[i].Metadata.Name, c.jobs[i].Spec.Template.Metadata.Labels
		reached := engines
		if name == "notifyd-load" { // over loopback alone
			reached = nil
		}
		check(name, of, []int{7421}, reached, nil)
	}
	// The internet is what is neither private nor the metadata of a cloud.
	for i := range c.policies {
		for _, rule := range c.policies[i].Spec.Egress {
			for _, to := range rule.To {
				if to.IPBlock == nil || to.IPBlock.CIDR == "2000::/3" {
					continue
				}
				for _, addr := range []string{"10.1.2.3", "169.254.169.254", "172.16.0.1", "192.168.0.1", "127.0.0.1", "100.64.0.1"} {
					a := netip.MustParseAddr(addr)
					if !slices.ContainsFunc(to.IPBlock.Except, func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(a) }) {
						t.Errorf("%s: %s can be reached", c.policies[i].Metadata.Name, addr)
					}
				}
			}
		}
	}
}

func hasPort(box *container, name string) bool {
	for _, p := range box.Ports {
		if p.Name == name {
			want := map[string]int{"api": 7420, "admin": 7421}[name]
			return p.ContainerPort == want
		}
	}
	return false
}

func checkProbes(t *testing.T, name string, box *container) {
	t.Helper()
	for what, p := range map[string]*probe{"liveness /healthz": box.LivenessProbe, "startup /healthz": box.StartupProbe, "readiness /readyz": box.ReadinessProbe} {
		_, path, _ := strings.Cut(what, " ")
		if p == nil || p.HTTPGet.Path != path || p.HTTPGet.Port != "admin" || p.PeriodSeconds < 1 || p.FailureThreshold < 1 {
			t.Errorf("%s: probe %s is %+v", name, what, p)
		}
	}
	if !hasPort(box, "admin") {
		t.Errorf("%s: no port admin", name)
	}
}

// checkBudget wants a budget of the Deployment that allows a node to be drained,
// and never all of it to go.
func (c *cluster) checkBudget(t *testing.T, d *deployment) {
	t.Helper()
	for i := range c.budgets {
		b := &c.budgets[i]
		if !within(b.Spec.Selector.MatchLabels, d.Spec.Template.Metadata.Labels) {
			continue
		}
		may := b.Spec.MaxUnavailable
		if b.Spec.MinAvailable > 0 {
			may = d.Spec.Replicas - b.Spec.MinAvailable
		}
		if may < 1 || may >= d.Spec.Replicas {
			t.Errorf("%s: %d of %d may go", d.Metadata.Name, may, d.Spec.Replicas)
		}
		return
	}
	t.Errorf("%s: no budget", d.Metadata.Name)
}

// checkPod holds a pod to the restricted policy and its names to what there is.
func (c *cluster) checkPod(t *testing.T, name string, pod *template) {
	t.Helper()
	s := &pod.Spec
	no := func(b *bool) bool { return b != nil && !*b }
	if !s.SecurityContext.RunAsNonRoot || s.SecurityContext.RunAsUser < 1 || s.SecurityContext.SeccompProfile.Type != "RuntimeDefault" || !no(s.AutomountToken) || !no(s.EnableServiceLinks) {
		t.Errorf("%s: security context %+v", name, s.SecurityContext)
	}
	if !slices.Contains(c.names, "ServiceAccount/"+s.ServiceAccountName) {
		t.Errorf("%s: service account %q", name, s.ServiceAccountName)
	}
	for _, sp := range s.Spread {
		if !within(sp.LabelSelector.MatchLabels, pod.Metadata.Labels) {
			t.Errorf("%s: spreads others", name)
		}
	}
	if len(s.Containers) != 1 {
		t.Fatalf("%s: %d containers", name, len(s.Containers))
	}
	box := &s.Containers[0]
	if sc := box.SecurityContext; !no(sc.Escalation) || !sc.ReadOnlyRoot || !slices.Equal(sc.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("%s: security context %+v", name, sc)
	}
	if r := box.Resources; r.Requests.CPU == "" || r.Requests.Memory == "" || r.Limits.Memory == "" {
		t.Errorf("%s: resources %+v", name, r)
	}
	for _, m := range box.VolumeMounts {
		i := slices.IndexFunc(s.Volumes, func(v volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Errorf("%s: no volume %s", name, m.Name)
			continue
		}
		v := s.Volumes[i]
		if v.ConfigMap.Name != "" && (v.ConfigMap.Name != c.config.Metadata.Name || c.config.Data[m.SubPath] == "") {
			t.Errorf("%s: no %s in ConfigMap %s", name, m.SubPath, v.ConfigMap.Name)
		}
		if v.Secret.SecretName != "" && v.Secret.SecretName != c.secret.Metadata.Name {
			t.Errorf("%s: no Secret %s", name, v.Secret.SecretName)
		}
	}
	var environ []string
	for _, e := range box.Env {
		if strings.HasPrefix(e.Name, app.EnvPrefix) {
			environ = append(environ, e.Name+"=x")
		}
	}
	if box.Image == "notifyd" {
		checkCommand(t, name, "notifyd", box.Args)
		checkConfig(t, name, []byte(c.config.Data["notifyd.yaml"]), environ...)
		if i := slices.Index(box.Args, "--config"); i < 0 || !slices.ContainsFunc(box.VolumeMounts, func(m struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			SubPath   string `yaml:"subPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		}) bool {
			return m.MountPath == box.Args[i+1]
		}) {
			t.Errorf("%s: its configuration is not mounted", name)
		}
	}
}

// The load job: as many segments as pods, numbered from 1, at once.
func TestLoadJob(t *testing.T) {
	t.Parallel()
	c := readCluster(t)
	i := slices.IndexFunc(c.jobs, func(j job) bool { return j.Metadata.Name == "notifyd-load" })
	if i < 0 {
		t.Fatal("no job notifyd-load")
	}
	j := &c.jobs[i].Spec
	box := &j.Template.Spec.Containers[0]
	if j.CompletionMode != "Indexed" || j.Completions < 2 || j.Parallelism != j.Completions || j.BackoffLimit != 0 || j.Template.Spec.RestartPolicy != "Never" {
		t.Errorf("%+v", j)
	}
	if box.Image != "notifyd-tools" || !slices.Equal(box.Command, []string{"sh", "-ec"}) || len(box.Args) != 1 {
		t.Fatalf("runs %s %q %q", box.Image, box.Command, box.Args)
	}
	line := box.Args[0]
	if want := fmt.Sprintf("--segment $((JOB_COMPLETION_INDEX+1))/%d --start-at \"$START_AT\"", j.Completions); !strings.Contains(line, want) {
		t.Errorf("%q has no %q", line, want)
	}
	line = strings.NewReplacer("$((JOB_COMPLETION_INDEX+1))", "1", `"$START_AT"`, "2030-01-01T00:00:00Z").Replace(line)
	args := strings.Fields(strings.TrimPrefix(line, "exec "))
	checkCommand(t, "load.example.yaml", args[0], args[1:])
	must(t, onlyFile("../"+strings.TrimPrefix(args[3], "/")))
}
