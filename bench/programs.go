package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"
)

// programs are what is measured: the gateway, and those of the other proxies that this machine has.
type programs struct {
	basegate    string
	competitors map[string]competitor // by target
	descriptors int                   // that each may have open
}

// rival is a proxy of somebody else's, as it is installed.
type competitor struct{ path, version string }

// rivalBinaries are the other proxies' binaries; Debian's packages of the same name bring them.
var competitorBinaries = map[string]string{nginx: "nginx", haproxy: "haproxy"}

// findPrograms also lets them have the descriptors that they will need. It looks for the other proxies in PATH, and where daemons are kept, which is not in everybody's PATH.
func findPrograms(ctx context.Context, basegate string) programs {
	p := programs{basegate: basegate, competitors: map[string]competitor{}, descriptors: raiseDescriptorLimit()}
	for target, binary := range competitorBinaries {
		for _, place := range []string{binary, filepath.Join("/usr/sbin", binary), filepath.Join("/usr/local/sbin", binary)} {
			if path, err := exec.LookPath(place); err == nil {
				p.competitors[target] = competitor{path, versionOf(ctx, path)}
				break
			}
		}
	}
	return p
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)+[^\s,]*`)

// versionOf is what a program says to -v; nginx says it on stderr.
func versionOf(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	said, err := exec.CommandContext(ctx, path, "-v").CombinedOutput()
	if number := versionNumber.Find(said); err == nil && number != nil {
		return string(number)
	}
	return "of an unknown version"
}

// proxies are the targets that can be started here, in the order of the table's columns.
func (p programs) proxies() []string {
	all := []string{reverseProxy, gateway, byteCopy}
	for _, name := range []string{nginx, haproxy} {
		if _, found := p.competitors[name]; found {
			all = append(all, name)
		}
	}
	return all
}

// versions say which of the other proxies took part, or how they could.
func (p programs) versions() []string {
	var all []string
	for _, name := range []string{nginx, haproxy} {
		if r, found := p.competitors[name]; found {
			all = append(all, name+" "+r.version)
		} else {
			all = append(all, fmt.Sprintf("%s is not installed here (Debian's package %s), so its columns are empty", name, competitorBinaries[name]))
		}
	}
	return all
}
