package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// programs are the programs to measure: the gateway, and the other proxies that are installed.
type programs struct {
	basegate    string
	old         string                // another binary of the gateway to compare with; empty: none
	competitors map[string]competitor // by target
	descriptors int                   // limit of open files of each process
}

// competitor is an installed proxy of another project.
type competitor struct{ path, version string }

// competitorBinaries are the binaries of the other proxies, which are also the names of their Debian packages.
var competitorBinaries = map[string]string{nginx: "nginx", haproxy: "haproxy"}

// findPrograms looks for the other proxies in PATH and in the directories of daemons, which may not be in PATH. It
// also raises the limit of open files.
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

// versionOf returns the version that a program prints for -v; nginx prints it to stderr.
func versionOf(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	output, err := exec.CommandContext(ctx, path, "-v").CombinedOutput()
	if number := versionNumber.Find(output); err == nil && number != nil {
		return string(number)
	}
	return "of an unknown version"
}

// proxies returns the targets that can be started here, in the order of the table's columns.
func (p programs) proxies() []string {
	all := []string{reverseProxy, gateway, byteCopy}
	for _, name := range []string{nginx, haproxy} {
		if _, found := p.competitors[name]; found {
			all = append(all, name)
		}
	}
	return all
}

// loaded returns the targets that the loads are sent to, in the order of the table's columns.
func (p programs) loaded() []string {
	all := p.proxies()
	if p.old != "" {
		all = slices.Insert(all, 2, oldGateway)
	}
	return slices.Insert(all, 2, flushing)
}

// versions returns the versions of the other proxies, or that they are not installed.
func (p programs) versions() []string {
	var all []string
	for _, name := range []string{nginx, haproxy} {
		if c, found := p.competitors[name]; found {
			all = append(all, name+" "+c.version)
		} else {
			all = append(all, fmt.Sprintf("%s is not installed here (Debian's package %s), so its columns are empty", name, competitorBinaries[name]))
		}
	}
	return all
}
