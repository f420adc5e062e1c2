package config_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"basegate/gateway/config"
)

// service holds the parts of a service in vllm-compose.yml that the tests check.
type service struct {
	Image       string
	Hostname    string
	Restart     string
	Ports       []string
	NetworkMode string `yaml:"network_mode"`
	IPC         string
	ShmSize     string `yaml:"shm_size"`
	Command     []string
	Volumes     []string
	Profiles    []string
	Environment map[string]any
	Healthcheck struct{ Test []string }
	Deploy      struct {
		Resources struct {
			Reservations struct {
				Devices []struct {
					Count     int
					DeviceIDs []string `yaml:"device_ids"`
				}
			}
		}
	}
}

// flag returns the value of --name=value, or "" if the command has no such flag.
func (s service) flag(name string) string {
	for _, arg := range s.Command {
		if value, found := strings.CutPrefix(arg, "--"+name+"="); found {
			return value
		}
	}
	return ""
}

func (s service) gpus() int {
	n := 0
	for _, d := range s.Deploy.Resources.Reservations.Devices {
		n += d.Count + len(d.DeviceIDs)
	}
	return n
}

func loadCompose(t *testing.T) (services map[string]service, text string) {
	t.Helper()
	return loadComposeFile(t, "../../vllm-compose.yml")
}

// socketFolder has the override of vllm-compose.yml that gives the gateway Docker's socket, and its configuration.
const socketFolder = "../../deploy/docker-socket/"

func loadComposeFile(t *testing.T, path string) (services map[string]service, text string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Services map[string]service }
	if err := yaml.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	return file.Services, string(raw)
}

func loadComposeConfig(t *testing.T, path string) *config.Config {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(path, text, func(string) (string, bool) { return "secret", true })
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range cfg.Warnings {
		t.Errorf("unexpected warning: %v", w)
	}
	return cfg
}

// The names of model, backend and service must match; a typo in one of them would show only on a machine with GPUs.
func TestComposeFileMatchesItsConfiguration(t *testing.T) {
	services, _ := loadCompose(t)
	cfg := loadComposeConfig(t, socketFolder+"config.yaml")
	gpus := map[string]int{}
	for _, m := range cfg.Models {
		b := m.Backends[0]
		s, found := services[b.Name]
		if !found || b.Name != m.ID || len(m.Backends) != 1 {
			t.Fatalf("model %s has %d backends, the first %s; want one, named like its service and its model", m.ID, len(m.Backends), b.Name)
		}
		gpus[m.ID] = s.gpus()
		if s.Command[0] != m.Checkpoint || s.flag("served-model-name") != m.Checkpoint {
			t.Errorf("%s: vLLM loads %s and serves it as %s; the configuration has %s", m.ID, s.Command[0], s.flag("served-model-name"), m.Checkpoint)
		}
		host := b.Name
		if s.NetworkMode == "host" {
			host = "host.docker.internal"
		}
		if want := "http://" + host + ":" + s.flag("port"); strings.TrimSuffix(b.URL.String(), "/") != want {
			t.Errorf("%s: url %s, but vLLM listens on %s", m.ID, b.URL, want)
		}
		want := &config.Launch{Start: []string{"docker-compose", "up", "-d", b.Name}, Stop: []string{"docker-compose", "stop", b.Name}}
		if diff := cmp.Diff([][]string{want.Start, want.Stop}, [][]string{b.Launch.Start, b.Launch.Stop}); diff != "" {
			t.Errorf("%s: launch (-want +got):\n%s", m.ID, diff)
		}
	}
	if diff := cmp.Diff(map[string]int{"llama-8b": 1, "llama-405b": 8, "trinity-base": 8, "qwen-cpu": 0}, gpus); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
}

// The two configurations differ by the launch commands only: without the socket, they would fail.
func TestComposeConfigurationsDifferByLaunchOnly(t *testing.T) {
	without, with := loadComposeConfig(t, "../../compose-config.yaml"), loadComposeConfig(t, socketFolder+"config.yaml")
	for i, m := range without.Models {
		if m.Backends[0].Launch != nil {
			t.Errorf("%s: compose-config.yaml has a launch", m.ID)
		}
		with.Models[i].Backends[0].Launch = nil
	}
	if !reflect.DeepEqual(without, with) {
		t.Error("the configurations with and without the socket differ in more than launch")
	}
}

// Only the override gives the gateway the socket.
func TestOnlyTheOverrideMountsTheDockerSocket(t *testing.T) {
	const socket = "docker.sock"
	services, _ := loadCompose(t)
	override, _ := loadComposeFile(t, socketFolder+"compose.yml")
	for name, s := range services {
		if strings.Contains(strings.Join(s.Volumes, " "), socket) {
			t.Errorf("%s has the socket", name)
		}
	}
	if image := services["gateway"].Image; image != "${BASEGATE_IMAGE:-basegate:latest}" {
		t.Errorf("the gateway without the socket is %s, want the image without Compose", image)
	}
	if g := override["gateway"]; !strings.Contains(strings.Join(g.Volumes, " "), socket) || len(override) != 1 {
		t.Errorf("the override is of %d services, the gateway with the volumes %v; want the gateway and the socket", len(override), g.Volumes)
	}
}

// An option -f replaces COMPOSE_FILE, and so the files that the gateway's own Compose uses. Nothing recommends one, and
// the example of .env names files that exist.
func TestNoDocumentUsesComposeWithFiles(t *testing.T) {
	root := os.DirFS("../..")
	withFile := regexp.MustCompile(`docker[ -]compose[^\n]* (-f|--file)[ =]|docker(, compose|-compose), -f`)
	read := 0
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if name := d.Name(); path != "." && (name[0] == '.' || name == "bin" || name == "node_modules" || name == "testdata") {
				return fs.SkipDir
			}
			return err
		}
		if !slices.Contains([]string{".md", ".yml", ".yaml", ".service"}, filepath.Ext(path)) {
			return nil
		}
		read++
		text, err := fs.ReadFile(root, path)
		if found := withFile.Find(text); found != nil {
			t.Errorf("%s: %s", path, found)
		}
		return err
	})
	if err != nil || read < 30 {
		t.Errorf("read %d files (error %v), want at least 30", read, err)
	}
	example, err := os.ReadFile("../../.env.example")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^#?COMPOSE_FILE=(.*)$`).FindAllStringSubmatch(string(example), -1)
	if len(lines) != 2 || lines[0][0] != "COMPOSE_FILE=vllm-compose.yml" || lines[1][0][0] != '#' {
		t.Fatalf("got %q, want the main file, and a comment with the override", lines)
	}
	for file := range strings.SplitSeq(lines[1][1], ":") {
		if _, err := fs.Stat(root, file); err != nil {
			t.Error(err)
		}
	}
}

func TestComposeServicesHaveTheRequiredSettings(t *testing.T) {
	services, _ := loadCompose(t)
	pinned := regexp.MustCompile(`^vllm/vllm-openai(-cpu)?:\$\{VLLM_VERSION:-v\d+\.\d+\.\d+\}`)
	checked := 0
	for name, s := range services {
		if !strings.HasPrefix(s.Image, "vllm/") {
			continue
		}
		checked++
		for requirement, met := range map[string]bool{
			"a pinned version":                    pinned.MatchString(s.Image),
			"a restart also after exit code 0":    s.Restart == "unless-stopped",
			"shared memory":                       s.IPC == "host" || s.ShmSize != "",
			"the model cache":                     slices.Contains(s.Volumes, "model-cache:/root/.cache"),
			"vLLM's own sampling defaults":        s.flag("generation-config") == "vllm",
			"no log of prompts":                   slices.Contains(s.Command, "--no-enable-log-requests"),
			"a health check":                      len(s.Healthcheck.Test) > 0,
			"a profile, so that up starts none":   len(s.Profiles) == 1,
			"a name for the model that it serves": s.flag("served-model-name") != "",
		} {
			if !met {
				t.Errorf("%s lacks %s", name, requirement)
			}
		}
	}
	if checked != 5 {
		t.Errorf("found %d services with vLLM, want 5", checked)
	}
}

// The head and the worker of a model must have the same flags, except for their rank.
func TestComposeNodesOfAModelHaveTheSameFlags(t *testing.T) {
	services, _ := loadCompose(t)
	common := func(s service) []string {
		return slices.DeleteFunc(slices.Clone(s.Command), func(arg string) bool {
			return arg == "--headless" || strings.HasPrefix(arg, "--port=") || strings.HasPrefix(arg, "--node-rank=")
		})
	}
	head, worker := services["llama-405b"], services["llama-405b-worker"]
	if diff := cmp.Diff(common(head), common(worker)); diff != "" {
		t.Errorf("flags (-head +worker):\n%s", diff)
	}
	if head.flag("node-rank") != "0" || worker.flag("node-rank") != "1" || !slices.Contains(worker.Command, "--headless") {
		t.Error("want the head to be node 0, and the worker node 1 and headless")
	}
	if diff := cmp.Diff(head.Environment, worker.Environment); diff != "" {
		t.Errorf("environment (-head +worker):\n%s", diff)
	}
	if diff := cmp.Diff(head.Image, worker.Image); diff != "" {
		t.Errorf("image (-head +worker):\n%s", diff)
	}
}

// A launch command inside the gateway's container reads the same file with the gateway's variables. If one were
// missing, the service would differ and Compose would recreate its container.
func TestComposePassesEveryModelVariableToTheGateway(t *testing.T) {
	services, text := loadCompose(t)
	override, _ := loadComposeFile(t, socketFolder+"compose.yml")
	gateway := override["gateway"].Environment
	maps.Copy(gateway, services["gateway"].Environment)
	models := text[strings.Index(text, "\n  llama-8b:"):strings.Index(text, "\n  prometheus:")]
	head := text[:strings.Index(text, "\nx-gateway:")]
	used := regexp.MustCompile(`\$\{([A-Z0-9_]+)`).FindAllStringSubmatch(head+models, -1)
	passedThrough := regexp.MustCompile(`(?m)^ +([A-Z0-9_]+): *(?:#.*)?$`) // a name without a value
	used = append(used, passedThrough.FindAllStringSubmatch(head+models, -1)...)
	if len(used) < 10 {
		t.Fatalf("found %d variables, want at least 10", len(used))
	}
	for _, m := range used {
		if _, passed := gateway[m[1]]; !passed {
			t.Errorf("the gateway lacks the variable %s", m[1])
		}
	}
}

func TestPrometheusScrapesEveryComposeBackend(t *testing.T) {
	text, err := os.ReadFile("../../deploy/prometheus/prometheus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Jobs []struct {
			Name    string `yaml:"job_name"`
			Targets []struct {
				Targets []string
				Labels  map[string]string
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	got, want := map[string]string{}, map[string]string{"gateway:9090": ""}
	for _, job := range file.Jobs {
		for _, group := range job.Targets {
			got[group.Targets[0]] = group.Labels["model"]
		}
	}
	for _, m := range loadComposeConfig(t, "../../compose-config.yaml").Models {
		want[m.Backends[0].URL.Host] = m.ID
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("target: model (-want +got):\n%s", diff)
	}
}
