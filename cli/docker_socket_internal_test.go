package cli

import (
	"net"
	"path/filepath"
	"testing"

	"basegate/gateway/config"
)

// The warning is about a socket that this process can open and that no launch command needs. DOCKER_HOST names the test's
// own; a machine's Docker may be open as well.
func TestUnneededDockerSocketIsFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	t.Setenv("DOCKER_HOST", "unix://"+path)
	with := func(launch *config.Launch) *config.Config {
		return &config.Config{Models: []config.Model{{Backends: []config.Backend{{}, {Launch: launch}}}}}
	}
	for name, test := range map[string]struct {
		launch *config.Launch
		found  bool
	}{
		"no launch command":         {nil, true},
		"a launch without docker":   {&config.Launch{Start: []string{"systemctl", "start", "vllm"}}, true},
		"docker compose":            {&config.Launch{Start: []string{"docker", "compose", "up"}}, false},
		"docker-compose at a path":  {&config.Launch{Start: []string{"/usr/local/bin/docker-compose", "up"}}, false},
		"docker by sudo, for stops": {&config.Launch{Start: []string{"start"}, Stop: []string{"sudo", "docker", "stop", "vllm"}}, false},
	} {
		if got := unneededDockerSocket(t.Context(), with(test.launch)); (got != "") != test.found {
			t.Errorf("%s: got %q, want a socket: %t", name, got, test.found)
		}
	}
}

func TestClosedDockerSocketIsNotReported(t *testing.T) {
	t.Setenv("DOCKER_HOST", "unix://"+filepath.Join(t.TempDir(), "missing.sock"))
	if got := unneededDockerSocket(t.Context(), &config.Config{}); got != "" && got != "/var/run/docker.sock" {
		t.Errorf("got %q, a socket that does not exist", got)
	}
}
