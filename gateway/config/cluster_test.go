package config_test

import (
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/gateway/config"
)

// loadClusterConfig loads the configuration of the profile cluster. It has one warning: files travel to the S3 server without
// TLS, on the project's network.
func loadClusterConfig(t *testing.T) *config.Config {
	t.Helper()
	const file = "../../deploy/cluster/config.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(file, text, func(string) (string, bool) { return "secret", true })
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Warnings) != 1 || !strings.Contains(cfg.Warnings[0].Error(), "without TLS") {
		t.Errorf("warnings %v, want the one about the S3 server", cfg.Warnings)
	}
	return cfg
}

// The gateways of the profile cluster serve what the single gateway does.
func TestClusterServesTheModelsOfCompose(t *testing.T) {
	single, cluster := loadComposeConfig(t, "../../compose-config.yaml"), loadClusterConfig(t)
	if !reflect.DeepEqual(single.Models, cluster.Models) {
		t.Error("the models of deploy/cluster/config.yaml and compose-config.yaml differ")
	}
}

// clusterServices returns the services of the profile cluster.
func clusterServices(t *testing.T) map[string]service {
	t.Helper()
	services, _ := loadCompose(t)
	found := map[string]service{}
	for name, s := range services {
		if slices.Contains(s.Profiles, "cluster") {
			found[name] = s
		}
	}
	want := []string{"gateway-1", "gateway-2", "haproxy", "postgres", "s3"}
	if got := sortedKeys(found); !slices.Equal(got, want) {
		t.Fatalf("the profile cluster has the services %v, want %v", got, want)
	}
	return found
}

func sortedKeys(m map[string]service) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// The addresses, folders and names by which the services of the profile find each other agree.
func TestClusterServicesFindEachOther(t *testing.T) {
	services, cfg := clusterServices(t), loadClusterConfig(t)
	_, port, _ := strings.Cut(cfg.Server.Listen, ":")
	proxy, err := os.ReadFile("../../deploy/haproxy/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, m := range regexp.MustCompile(`(?m)^ +presetenv +GATEWAY_\d +(\S+)$`).FindAllStringSubmatch(string(proxy), -1) {
		addresses = append(addresses, m[1])
	}
	if diff := cmp.Diff([]string{"gateway-1:" + port, "gateway-2:" + port}, addresses); diff != "" {
		t.Errorf("HAProxy's gateways (-want +got):\n%s", diff)
	}
	const socket = "postgres-socket:/var/run/postgresql"
	for _, name := range []string{"gateway-1", "gateway-2", "postgres"} {
		if !slices.Contains(services[name].Volumes, socket) {
			t.Errorf("%s lacks the folder of PostgreSQL's socket: %v", name, services[name].Volumes)
		}
	}
	if url := cfg.Database.URL.Reveal(); url != "postgres://basegate:secret@/basegate?host=/var/run/postgresql" {
		t.Errorf("the URL of the database is %s", url)
	}
	bucket, ok := cfg.Files.Bucket()
	s3 := services["s3"]
	if !ok || bucket.Endpoint != "s3:7070" || !slices.Contains(s3.Command, ":7070") || !slices.Contains(s3.Command, bucket.Region) {
		t.Errorf("the gateways ask %+v, the S3 server has %v", bucket, s3.Command)
	}
	if folder := s3.Command[len(s3.Command)-1]; !slices.Contains(s3.Volumes, "s3:"+path.Join(folder, bucket.Name)) {
		t.Errorf("the bucket %s is no folder of %s: %v", bucket.Name, folder, s3.Volumes)
	}
	for _, name := range []string{"gateway-1", "gateway-2"} {
		if s := services[name]; s.Hostname != name || s.Environment["BASEGATE_CONFIG"] != "deploy/cluster/config.yaml" {
			t.Errorf("%s: hostname %q, configuration %v", name, s.Hostname, s.Environment["BASEGATE_CONFIG"])
		}
	}
}

// Only HAProxy is reachable from outside the project. What the services mount exists, and no secret has a default.
func TestClusterServicesHaveTheRequiredSettings(t *testing.T) {
	pinned := regexp.MustCompile(`:v?\d+\.\d+`)
	for name, s := range clusterServices(t) {
		if (len(s.Ports) > 0) != (name == "haproxy") {
			t.Errorf("%s publishes the ports %v", name, s.Ports)
		}
		if len(s.Healthcheck.Test) == 0 || s.Restart == "" {
			t.Errorf("%s has no health check or no restart", name)
		}
		if !strings.HasPrefix(name, "gateway-") && !pinned.MatchString(s.Image) {
			t.Errorf("%s: the image %s is not pinned", name, s.Image)
		}
		for _, volume := range s.Volumes {
			if source, _, _ := strings.Cut(volume, ":"); strings.HasPrefix(source, "./") {
				if _, err := os.Stat(path.Join("../..", source)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		for key, value := range s.Environment {
			secret := strings.Contains(key, "PASSWORD") || strings.Contains(key, "SECRET") || strings.HasSuffix(key, "API_KEY")
			if text, _ := value.(string); secret && !strings.HasSuffix(text, ":-}") {
				t.Errorf("%s: %s is %q, want a variable without a default", name, key, text)
			}
		}
	}
}
