// Package helm_test tests the chart deploy/helm/basegate: Helm renders it with each file of its folder ci, and the manifests
// are decoded with Kubernetes' own types, which know every field.
package helm_test

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

const (
	chart = "../../../deploy/helm/basegate"
	valid = chart + "/ci/postgres-values.yaml"
)

// helm runs the helm that `make chart` builds.
func helm(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	program, err := filepath.Abs("../../../bin/helm")
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	home := t.TempDir()
	cmd.Env = []string{"HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_CACHE_HOME=" + home, "HELM_DATA_HOME=" + home, "PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w: %s%s", strings.Join(args, " "), err, &out, &errs)
	}
	return out.String(), nil
}

// manifests are the objects of one rendering.
type manifests struct {
	kinds      map[string]int
	deployment *apps.Deployment
	config     *core.ConfigMap
	secret     *core.Secret
	claim      *core.PersistentVolumeClaim
	account    *core.ServiceAccount
	budget     *policy.PodDisruptionBudget
	monitor    *monitoring.ServiceMonitor
	services   map[string]*core.Service
}

func (m *manifests) container() *core.Container {
	return &m.deployment.Spec.Template.Spec.Containers[0]
}

// render renders the chart with a file of values, and decodes the objects. Unknown and repeated fields are errors.
func render(t *testing.T, values string, args ...string) *manifests {
	t.Helper()
	text, err := helm(t, append([]string{"template", "lab", chart, "--namespace", "llm", "--kube-version", "1.30.0", "-f", values}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, core.AddToScheme, policy.AddToScheme, monitoring.AddToScheme} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, known, known, json.SerializerOptions{Yaml: true, Strict: true})
	m := &manifests{kinds: map[string]int{}, services: map[string]*core.Service{}}
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		object, kind, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		m.kinds[kind.Kind]++
		m.add(t, object)
	}
	return m
}

func (m *manifests) add(t *testing.T, object runtime.Object) {
	t.Helper()
	switch o := object.(type) {
	case *apps.Deployment:
		m.deployment = o
	case *core.ConfigMap:
		m.config = o
	case *core.Secret:
		m.secret = o
	case *core.PersistentVolumeClaim:
		m.claim = o
	case *core.ServiceAccount:
		m.account = o
	case *policy.PodDisruptionBudget:
		m.budget = o
	case *monitoring.ServiceMonitor:
		m.monitor = o
	case *core.Service:
		m.services[o.Name] = o
	default:
		t.Errorf("unexpected object %T", o)
	}
}

// renderings are the files of values, and the kinds of objects that the chart makes of them.
var renderings = map[string]map[string]int{
	"postgres":        {"Deployment": 1, "Service": 1, "ConfigMap": 1, "Secret": 1, "ServiceAccount": 1, "PodDisruptionBudget": 1},
	"s3":              {"Deployment": 1, "Service": 1, "ConfigMap": 1, "Secret": 1, "ServiceAccount": 1, "PodDisruptionBudget": 1},
	"existing-secret": {"Deployment": 1, "Service": 1, "ConfigMap": 1, "PodDisruptionBudget": 1},
	"sqlite":          {"Deployment": 1, "Service": 1, "ConfigMap": 1, "Secret": 1, "ServiceAccount": 1, "PersistentVolumeClaim": 1},
	"service-monitor": {
		"Deployment": 1, "Service": 2, "ConfigMap": 1, "Secret": 1, "ServiceAccount": 1, "PodDisruptionBudget": 1, "ServiceMonitor": 1,
	},
}

func valuesFile(name string) string { return filepath.Join(chart, "ci", name+"-values.yaml") }

func TestEveryRenderingHasTheExpectedObjects(t *testing.T) {
	files, err := filepath.Glob(chart + "/ci/*.yaml")
	if err != nil || len(files) != len(renderings) {
		t.Fatalf("found %d files of values (error %v), want %d", len(files), err, len(renderings))
	}
	for name, want := range renderings {
		t.Run(name, func(t *testing.T) {
			if out, err := helm(t, "lint", "--strict", chart, "-f", valuesFile(name)); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if m := render(t, valuesFile(name)); !maps.Equal(m.kinds, want) {
				t.Errorf("got %v, want %v", m.kinds, want)
			}
		})
	}
}

// What the objects refer to exists: labels, ports, volumes, the Secret, the claim.
func TestObjectsReferToEachOther(t *testing.T) {
	for name := range renderings {
		t.Run(name, func(t *testing.T) {
			m := render(t, valuesFile(name))
			pod := labels.Set(m.deployment.Spec.Template.Labels)
			matches := func(of string, selector map[string]string) {
				if len(selector) == 0 || !labels.SelectorFromSet(selector).Matches(pod) {
					t.Errorf("%s selects %v, the pods have %v", of, selector, pod)
				}
			}
			matches("the Deployment", m.deployment.Spec.Selector.MatchLabels)
			ports := map[string]bool{}
			for _, port := range m.container().Ports {
				ports[port.Name] = true
			}
			for _, service := range m.services {
				matches(service.Name, service.Spec.Selector)
				if target := service.Spec.Ports[0].TargetPort.StrVal; !ports[target] {
					t.Errorf("%s leads to the port %q, the container has %v", service.Name, target, ports)
				}
			}
			if m.budget != nil {
				matches("the PodDisruptionBudget", m.budget.Spec.Selector.MatchLabels)
			}
			checkVolumes(t, m)
			checkNames(t, m)
		})
	}
}

func checkVolumes(t *testing.T, m *manifests) {
	t.Helper()
	var volumes, mounts []string
	for _, v := range m.deployment.Spec.Template.Spec.Volumes {
		volumes = append(volumes, v.Name)
		if claim := v.PersistentVolumeClaim; v.Name == "data" && claim != nil && (m.claim == nil || claim.ClaimName != m.claim.Name) {
			t.Errorf("the claim %s does not exist", claim.ClaimName)
		}
		if v.Name == "config" && v.ConfigMap.Name != m.config.Name {
			t.Errorf("the ConfigMap %s does not exist", v.ConfigMap.Name)
		}
	}
	for _, mount := range m.container().VolumeMounts {
		mounts = append(mounts, mount.Name)
	}
	slices.Sort(volumes)
	slices.Sort(mounts)
	if !slices.Equal(volumes, mounts) {
		t.Errorf("volumes %v, mounts %v", volumes, mounts)
	}
}

func checkNames(t *testing.T, m *manifests) {
	t.Helper()
	secret, account := "basegate-secrets", "shared" // those of existing-secret-values.yaml
	if m.secret != nil {
		secret = m.secret.Name
	}
	if m.account != nil {
		account = m.account.Name
	}
	if got := m.container().EnvFrom[0].SecretRef.Name; got != secret {
		t.Errorf("the variables are those of the Secret %s, want %s", got, secret)
	}
	if got := m.deployment.Spec.Template.Spec.ServiceAccountName; got != account {
		t.Errorf("the service account is %s, want %s", got, account)
	}
}

// A gateway that is stopped has time to drain; it runs without privileges and writes to its volume only.
func TestGatewaysDrainAndAreConfined(t *testing.T) {
	drain := map[string]string{"sqlite": "120s"}
	for name := range renderings {
		t.Run(name, func(t *testing.T) {
			m := render(t, valuesFile(name))
			pod, c := m.deployment.Spec.Template.Spec, m.container()
			want := "drain_timeout: " + cmp.Or(drain[name], "600s")
			if !strings.Contains(m.config.Data["config.yaml"], want) {
				t.Errorf("the configuration lacks %s:\n%s", want, m.config.Data["config.yaml"])
			}
			seconds := map[string]int64{"drain_timeout: 600s": 600, "drain_timeout: 120s": 120}[want]
			if stop := c.Lifecycle.PreStop.Sleep.Seconds; stop < 1 || *pod.TerminationGracePeriodSeconds < stop+seconds+30 {
				t.Errorf("a pod has %d s to stop: %d s before its drain of %d s", *pod.TerminationGracePeriodSeconds, stop, seconds)
			}
			if p := pod.SecurityContext; !*p.RunAsNonRoot || *p.RunAsUser != 65532 || p.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
				t.Errorf("the pod's security context: %v", p)
			}
			if s := c.SecurityContext; !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
				t.Errorf("the container's security context: %v", s)
			}
			if *pod.AutomountServiceAccountToken || *pod.EnableServiceLinks {
				t.Error("the pod has a token of Kubernetes, or the variables of all Services")
			}
			ready := map[string]string{"existing-secret": "/healthz"}
			if got := c.ReadinessProbe.HTTPGet.Path; got != cmp.Or(ready[name], "/readyz") {
				t.Errorf("the readiness probe asks %s", got)
			}
			if live, start := c.LivenessProbe.HTTPGet.Path, c.StartupProbe.HTTPGet.Path; live != "/healthz" || start != "/healthz" {
				t.Errorf("the liveness probe asks %s, the startup probe %s", live, start)
			}
		})
	}
}

// On PostgreSQL, the name of the pod is the name of the gateway, and the URL comes from the Secret.
func TestGatewaysAreNamedByTheirPods(t *testing.T) {
	for name := range renderings {
		m := render(t, valuesFile(name))
		postgres := name != "sqlite"
		text := m.config.Data["config.yaml"]
		for _, line := range []string{"name: ${BASEGATE_GATEWAY_NAME}", "url: ${BASEGATE_DATABASE_URL}"} {
			if strings.Contains(text, line) != postgres {
				t.Errorf("%s: %s in the configuration is wrong:\n%s", name, line, text)
			}
		}
		if strings.Contains(text, "basegate:secret") {
			t.Errorf("%s: the configuration has the password", name)
		}
		if url := ""; m.secret != nil {
			if url = m.secret.StringData["BASEGATE_DATABASE_URL"]; (url != "") != postgres {
				t.Errorf("%s: the Secret has the URL %q", name, url)
			}
		}
		i := slices.IndexFunc(m.container().Env, func(e core.EnvVar) bool { return e.Name == "BASEGATE_GATEWAY_NAME" })
		if i < 0 || m.container().Env[i].ValueFrom.FieldRef.FieldPath != "metadata.name" {
			t.Errorf("%s: the gateway's name is not the pod's", name)
		}
		if got := m.deployment.Spec.Strategy.Type; (got == apps.RecreateDeploymentStrategyType) == postgres {
			t.Errorf("%s: the strategy is %s", name, got)
		}
	}
}

// The ServiceMonitor selects one Service, which leads to the admin listener. Without metrics, that is on loopback.
func TestMetricsAreReachableOnlyIfEnabled(t *testing.T) {
	m := render(t, valuesFile("service-monitor"))
	selector := labels.SelectorFromSet(m.monitor.Spec.Selector.MatchLabels)
	var selected []*core.Service
	for _, service := range m.services {
		if selector.Matches(labels.Set(service.Labels)) {
			selected = append(selected, service)
		}
	}
	if len(selected) != 1 || selected[0].Spec.Ports[0].Name != m.monitor.Spec.Endpoints[0].Port || m.monitor.Labels["release"] != "prometheus" {
		t.Errorf("the ServiceMonitor %v selects %d Services", m.monitor.Spec, len(selected))
	}
	if !strings.Contains(m.config.Data["config.yaml"], "admin_listen: 0.0.0.0:9090") {
		t.Errorf("the admin listener is not reachable:\n%s", m.config.Data["config.yaml"])
	}
	if m := render(t, valid); !strings.Contains(m.config.Data["config.yaml"], "admin_listen: 127.0.0.1:9090") {
		t.Errorf("the admin listener is reachable without metrics.enabled:\n%s", m.config.Data["config.yaml"])
	}
}

// A change of the configuration or of the Secret replaces the pods.
func TestPodsFollowTheConfiguration(t *testing.T) {
	before := render(t, valid).deployment.Spec.Template.Annotations
	for annotation, set := range map[string]string{
		"checksum/config": "config.models[0].id=other", "checksum/secret": "secret.env.VLLM_API_KEY=other",
	} {
		after := render(t, valid, "--set", set, "--set", "config.models[0].checkpoint=c,config.models[0].backends[0].url=http://a").deployment.Spec.Template.Annotations
		if before[annotation] == "" || before[annotation] == after[annotation] {
			t.Errorf("%s is %q before and %q after %s", annotation, before[annotation], after[annotation], set)
		}
	}
}

// Values that contradict each other are refused, with a message that names the value.
func TestContradictionsAreRefused(t *testing.T) {
	for _, c := range []struct{ values, set, want string }{
		{"sqlite", "replicas=2", "a SQLite file serves one gateway"},
		{"sqlite", "database.url=postgres://a", "database.engine is sqlite"},
		{"postgres", "database.url=", "want postgres://…, or secret.existing"},
		{"postgres", "secret.existing=a", "secret.existing is set"},
		{"postgres", "secret.env.BASEGATE_DATABASE_URL=a", "set database.url"},
		{"postgres", "files.url=file:///srv", "files.shared: true"},
		{"postgres", "metrics.serviceMonitor.enabled=true", "needs metrics.enabled"},
		{"postgres", "config.database.url=postgres://a", "config.database.url: the chart sets it"},
		{"postgres", "config.server.listen=:80", "config.server.listen: the chart sets it"},
		{"existing-secret", "secret.env.A=b", "creates no Secret"},
		{"postgres", "config.models=null", "models"},
		{"postgres", "replica=2", "replica"},
		{"postgres", "replicas=0", "replicas"},
		{"postgres", "database.engine=mysql", "engine"},
		{"postgres", "database.url=mysql://a", "database"},
		{"postgres", "probes.readiness=/", "readiness"},
	} {
		_, err := helm(t, "template", "lab", chart, "-f", valuesFile(c.values), "--set", c.set)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s: got %v, want a message with %q", c.values, c.set, err, c.want)
		}
	}
}

// The gateway itself reads each rendered configuration without a mistake.
func TestGatewayAcceptsEachConfiguration(t *testing.T) {
	program, err := filepath.Abs(cmp.Or(os.Getenv("BASEGATE_BIN"), "../../../bin/basegate"))
	if err != nil {
		t.Fatal(err)
	}
	accepted := regexp.MustCompile(`(?m)^configuration +ok +models: llama-8b$`)
	for name := range renderings {
		m := render(t, valuesFile(name))
		dir := t.TempDir()
		file := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(file, []byte(m.config.Data["config.yaml"]), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program, "check", "--config", file)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "BASEGATE_GATEWAY_NAME=pod-1", "VLLM_API_KEY=0123",
			"BASEGATE_DATABASE_URL=postgres://basegate@127.0.0.1:1/basegate") // nothing listens there: check says so, in another row
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || !accepted.Match(out) {
			t.Errorf("%s: %v:\n%s", name, err, out)
		}
	}
}
