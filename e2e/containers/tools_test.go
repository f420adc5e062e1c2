//go:build containers

package containers_test

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
)

// buildToolImage builds an image of programs of this machine and their shared libraries, so that no registry is needed.
// It returns the image's name. The entrypoint is the first program.
func buildToolImage(t *testing.T, base string, programs ...string) string {
	t.Helper()
	dir, files, entrypoint := t.TempDir(), map[string]bool{}, ""
	for _, program := range programs {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatalf("%s is not installed, and the test needs it in an image", program)
		}
		for _, file := range withLibraries(t, path) {
			files[file] = true
		}
		entrypoint = cmp.Or(entrypoint, path)
	}
	recipe := fmt.Sprintf("FROM %s\nUSER 0\nENTRYPOINT [%q]\n", base, entrypoint)
	for i, path := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("file", i)
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
		recipe += fmt.Sprintf("COPY %s %s\n", name, path)
	}
	return buildRecipe(t, dir, "basegate:e2e-"+filepath.Base(entrypoint), recipe)
}

// withLibraries returns the path of a program and those of its shared libraries.
func withLibraries(t *testing.T, program string) []string {
	t.Helper()
	linked, err := exec.CommandContext(t.Context(), "ldd", program).CombinedOutput()
	if err != nil && !bytes.Contains(linked, []byte("not a dynamic executable")) {
		t.Fatalf("ldd %s: %v: %s", program, err, linked)
	}
	files := []string{program}
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(linked), -1) {
		files = append(files, m[1])
	}
	return files
}

// buildRecipe builds an image of a folder by a Dockerfile, and returns the image's name.
func buildRecipe(t *testing.T, dir, image, dockerfile string) string {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := buildImage(t.Context(), dir, "", image); err != nil {
		t.Fatal(err)
	}
	return image
}

// buildPostgresImage builds an image of this machine's PostgreSQL with the entrypoint, user, folders and signal of the
// image postgres:18.
func buildPostgresImage(t *testing.T) {
	t.Helper()
	servers, err := filepath.Glob("/usr/lib/postgresql/*")
	if err != nil || len(servers) == 0 {
		t.Fatal("PostgreSQL is not installed, and the test needs it in an image")
	}
	slices.SortFunc(servers, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	server := servers[len(servers)-1]
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for _, folder := range []string{"etc", "bin"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	files := []string{strings.Replace(server, "/lib/", "/share/", 1), "/usr/share/zoneinfo", server}
	for _, program := range []string{"postgres", "initdb", "pg_ctl", "psql", "pg_isready"} {
		files = append(files, withLibraries(t, filepath.Join(server, "bin", program))...)
	}
	for _, program := range []string{"/bin/sh", "id", "mkdir", "chmod", "chown", "grep", "setpriv"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, withLibraries(t, path)...)
	}
	slices.Sort(files)
	args := append([]string{"-rL", "--parents", "-t", root}, slices.Compact(files)...)
	if out, err := exec.CommandContext(t.Context(), "cp", args...).CombinedOutput(); err != nil {
		t.Fatalf("copy PostgreSQL: %v: %s", err, out)
	}
	for _, unused := range []string{"bitcode", "llvmjit.so"} { // the latter needs LLVM, and PostgreSQL works without it
		if err := os.RemoveAll(filepath.Join(root, server, "lib", unused)); err != nil {
			t.Fatal(err)
		}
	}
	copyFile(t, "testdata/postgres-entrypoint", filepath.Join(root, "bin", "entrypoint"), 0o755)
	if err := os.WriteFile(filepath.Join(root, "etc", "passwd"), []byte("root:x:0:0::/:/bin/sh\npostgres:x:999:999::/:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc", "group"), []byte("root:x:0:\npostgres:x:999:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	buildRecipe(t, dir, "basegate:e2e-postgres", fmt.Sprintf(`FROM scratch
COPY root /
ENV PATH=%s/bin:/usr/local/bin:/usr/bin:/bin PGDATA=/var/lib/postgresql/18/docker
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
ENTRYPOINT ["/bin/entrypoint"]
CMD ["postgres"]
`, server))
}

// copyFile copies a file and sets its mode.
func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, mode); err != nil {
		t.Fatal(err)
	}
}

// absolute returns the absolute path of a file.
func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
