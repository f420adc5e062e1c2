package main_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const module = "basegate"

// floors lists every package from the ground up. A package may import only from lower floors; neighbours do not see
// each other.
var floors = [][]string{
	{"errors", "gateway/config", "docs", "budget/quota", "database", "mockvllm", "e2e/parity", "proxy/http1/pooled", "proxy/http1/strict", "proxy/loglikelihood", "gateway/logwriter", "gateway/tracing", "internal/bodyrate", "internal/form", "internal/loopback", "internal/loratest", "internal/poll", "internal/prefixload", "internal/providertest", "internal/ratelimit", "internal/ssetest"},
	{"validate", "breaker", "proxy/stream", "budget/usage", "budget/refusals", "gateway/mail", "gateway/notify", "console/sso", "database/transfer", "proxy/http1/client", "proxy/http1/server", "batch/storage", "internal/postgrestest", "internal/s3test"},
	{"identity", "console/prompts", "proxy/replay", "budget", "fleet", "internal/databasetest"},
	{"budget/usage/report", "budget/cluster", "budget/receipt", "database/consistency", "internal/ledgertest"},
	{"proxy"},
	{"batch", "console/history", "proxy/dialect/eternalai", "proxy/dialect/lamini"},
	{"console"},
	{"gateway"},
	{"cli"},
	{"."},
}

// outside drive the built binary, so they import nothing of its code, not even in tests, but the mock and the helpers of
// tests.
var (
	outside = []string{"e2e", "e2e/real", "bench"}
	helpers = []string{"internal/blockcache", "internal/loopback", "internal/loratest", "internal/poll", "internal/postgrestest", "internal/prefixload", "internal/s3test", "internal/wait"}
)

// leaves are small packages that every package may import, and that import nothing of this module.
var leaves = []string{"budget/admission", "database/postgres", "internal/blockcache", "internal/suggest", "internal/wait"}

// configured are the packages that know the configuration, some by a section of it; every other takes a small Settings of
// its own.
var configured = []string{"gateway", "cli", "fleet", "batch/storage", "console", "console/sso", "gateway/mail"}

// The files are read here and not by `go list`, since the test cache sees only what the test itself opens.
func TestImportsRunDownward(t *testing.T) {
	found, err := violations(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range found {
		t.Error(c)
	}
}

// violations lists the imports under root that go up, sideways or where only some may go.
func violations(root fs.FS) ([]string, error) {
	var found []string
	err := eachGoFile(root, func(file string) error {
		pkg := path.Dir(file)
		if strings.HasSuffix(file, "_test.go") && !slices.Contains(outside, pkg) {
			return nil
		}
		imports, err := internalImports(root, file)
		if err != nil {
			return err
		}
		for _, to := range imports {
			if c := violation(pkg, to); c != "" {
				found = append(found, file+" "+c)
			}
		}
		if floor(pkg) < 0 && !slices.Contains(outside, pkg) && !slices.Contains(leaves, pkg) {
			found = append(found, file+" is on no floor")
		}
		return nil
	})
	return found, err
}

// eachGoFile calls visit with each Go file of this module under root, tests included.
func eachGoFile(root fs.FS, visit func(file string) error) error {
	return fs.WalkDir(root, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		switch {
		case d.IsDir() && (name == "testdata" || name == "node_modules" || name != "." && (name[0] == '.' || isModule(root, file))):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		return visit(file)
	})
}

// isModule reports whether a folder is a module of its own.
func isModule(root fs.FS, dir string) bool {
	_, err := fs.Stat(root, path.Join(dir, "go.mod"))
	return err == nil
}

// internalImports lists the packages of this module that a file imports.
func internalImports(root fs.FS, file string) ([]string, error) {
	source, err := fs.ReadFile(root, file)
	if err != nil {
		return nil, err
	}
	f, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, spec := range f.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if rest, found := strings.CutPrefix(name, module+"/"); found {
			all = append(all, rest)
		} else if name == module {
			all = append(all, ".")
		}
	}
	return all, nil
}

func violation(from, to string) string {
	switch {
	case slices.Contains(outside, from):
		if to != "mockvllm" && !slices.Contains(helpers, to) {
			return fmt.Sprintf("(outside) imports %s", to)
		}
	case slices.Contains(leaves, to) && !slices.Contains(leaves, from):
		return ""
	case slices.Contains(outside, to) || floor(to) >= floor(from):
		return fmt.Sprintf("(floor %d) imports %s (floor %d)", floor(from), to, floor(to))
	case floor(to) < 0:
		return fmt.Sprintf("(floor %d) imports %s, which is on no floor", floor(from), to)
	case to == "gateway/config" && !slices.Contains(configured, from):
		return fmt.Sprintf("imports config, as only %s may", strings.Join(configured, ", "))
	}
	return ""
}

// floor returns the floor of a package; -1 if it has none.
func floor(pkg string) int {
	return slices.IndexFunc(floors, func(f []string) bool { return slices.Contains(f, pkg) })
}

func TestImportsThatGoAstrayAreNoticed(t *testing.T) {
	file := func(imports ...string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("package p\nimport (\n\"" + strings.Join(imports, "\"\n_ \"") + "\"\n)\n")}
	}
	got, err := violations(fstest.MapFS{
		"main.go":                   file("os", "basegate/cli"),
		"gateway/gateway.go":        file("basegate/gateway/config", "basegate/identity", "basegate/proxy", "basegate/errors"),
		"proxy/fine_test.go":        file("basegate/gateway", "basegate/gateway/config"),
		"proxy/node_modules/x/x.go": file("basegate/gateway"),
		"proxy/testdata/x.go":       file("basegate/gateway"),
		".ci/x.go":                  file("basegate/gateway"),
		"e2e/serve_test.go":         file("basegate/mockvllm", "example.com/other/gateway"),
		"gateway/config/suggest.go": file("basegate/internal/suggest"),
		"internal/suggest/x.go":     file("strings"),

		"bench/main.go":        file("basegate/validate"),
		"breaker/breaker.go":   file("basegate/validate"),
		"budget/budget.go":     file("basegate/gateway/config"),
		"database/database.go": file("basegate/nowhere"),
		"e2e/inside_test.go":   file("basegate/errors"),
		"identity/keys.go":     file("basegate/proxy"),
		"mockvllm/server.go":   file("basegate/errors"),
		"proxy/server.go":      file("basegate/e2e"),
		"proxy/sse/reader.go":  file("os"),
		"validate/validate.go": file("basegate"),

		"internal/suggest/y.go": file("basegate/errors"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"bench/main.go (outside) imports validate",
		"breaker/breaker.go (floor 1) imports validate (floor 1)",
		"budget/budget.go imports config, as only gateway, cli, fleet, batch/storage, console, console/sso, gateway/mail may",
		"database/database.go (floor 0) imports nowhere, which is on no floor",
		"e2e/inside_test.go (outside) imports errors",
		"identity/keys.go (floor 2) imports proxy (floor 4)",
		"internal/suggest/y.go (floor -1) imports errors (floor 0)",
		"mockvllm/server.go (floor 0) imports errors (floor 0)",
		"proxy/server.go (floor 4) imports e2e (floor -1)",
		"proxy/sse/reader.go is on no floor",
		"validate/validate.go (floor 1) imports . (floor 9)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
