package cli

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"basegate/gateway/config"
)

const dockerSocketWarning = "this process can open Docker's socket, which is equivalent to root on this machine, and no launch " +
	"command names docker; take the socket away from it"

// dockerSocketTimeout limits an attempt to open a socket.
const dockerSocketTimeout = time.Second

// unneededDockerSocket returns the path of a Docker socket that this process can open although no launch command names
// docker, or "". A launch command may use Docker through a script that is named otherwise.
func unneededDockerSocket(ctx context.Context, cfg *config.Config) string {
	if usesDocker(cfg) {
		return ""
	}
	sockets := []string{"/var/run/docker.sock"}
	if path, is := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); is {
		sockets = append(sockets, path)
	}
	dialer := net.Dialer{Timeout: dockerSocketTimeout}
	for _, path := range sockets {
		if conn, err := dialer.DialContext(ctx, "unix", path); err == nil {
			conn.Close()
			return path
		}
	}
	return ""
}

// usesDocker reports whether a launch command names docker, in any of its words.
func usesDocker(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.Models, func(m config.Model) bool {
		return slices.ContainsFunc(m.Backends, func(b config.Backend) bool {
			return b.Launch != nil && slices.ContainsFunc(slices.Concat(b.Launch.Start, b.Launch.Stop), func(word string) bool {
				return strings.Contains(word, "docker")
			})
		})
	})
}
