package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	codeSpan    = regexp.MustCompile("`([^`]+)`")
	goTest      = regexp.MustCompile(`^go test (-tags e2e )?\./([a-z0-9/]+)(?: -run (?:'([A-Za-z0-9|]+)'|([A-Za-z0-9]+)))?$`)
	testFunc    = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
	makeTarget  = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
	makeCommand = regexp.MustCompile(`^make ([a-z][a-z0-9-]*)`)
)

// go test passes if -run matches no test, so a renamed test would leave a promise unproven without a failure.
func TestCommandsOfThePromisesExist(t *testing.T) {
	page, err := os.ReadFile("promises.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, match := range makeTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets[match[1]] = true
	}
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.ReplaceAll(line, `\|`, "\x00"), "|")
		if len(cells) != 4 || strings.Contains(cells[2], "shown by") || strings.HasPrefix(cells[1], "---") {
			continue
		}
		rows++
		commands := 0
		for _, span := range codeSpan.FindAllStringSubmatch(strings.ReplaceAll(cells[2], "\x00", "|"), -1) {
			command := span[1]
			if match := makeCommand.FindStringSubmatch(command); match != nil {
				commands++
				if !targets[match[1]] {
					t.Errorf("%s: the Makefile has no such target", command)
				}
			} else if strings.HasPrefix(command, "go test") {
				commands++
				checkGoTest(t, command)
			}
		}
		if commands == 0 {
			t.Errorf("no command shows the promise %q", strings.TrimSpace(cells[1]))
		}
	}
	if rows < 20 {
		t.Errorf("found %d promises, want at least 20", rows)
	}
}

// checkGoTest checks that the package and the tests of a go test command exist.
func checkGoTest(t *testing.T, command string) {
	t.Helper()
	match := goTest.FindStringSubmatch(command)
	if match == nil {
		t.Errorf("%s: not of the form go test [-tags e2e] ./PACKAGE [-run NAMES]", command)
		return
	}
	names := testsOf(t, match[2], match[1] != "")
	if len(names) == 0 {
		t.Errorf("%s: the package has no tests", command)
	}
	for name := range strings.SplitSeq(match[3]+match[4], "|") {
		if name != "" && !names[name] {
			t.Errorf("%s: there is no %s", command, name)
		}
	}
}

// testsOf returns the names of a package's tests, with or without those that need the build tag e2e.
func testsOf(t *testing.T, pkg string, tagged bool) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !tagged && strings.Contains(string(text), "//go:build e2e") {
			continue
		}
		for _, match := range testFunc.FindAllStringSubmatch(string(text), -1) {
			names[match[1]] = true
		}
	}
	return names
}
