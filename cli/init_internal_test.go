package cli

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCommandsFindTheConfiguration(t *testing.T) {
	for name, c := range map[string]struct {
		files    []string
		packaged bool
		want     string
	}{
		"none":                      {want: "config.yaml"},
		"the small one first":       {[]string{"config.yaml", "basegate.yaml"}, true, "basegate.yaml"},
		"the full one":              {[]string{"config.yaml"}, false, "config.yaml"},
		"here before the package's": {[]string{"config.yaml"}, true, "config.yaml"},
		"the package's":             {nil, true, "packaged/config.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			packaged := filepath.Join("packaged", "config.yaml")
			if c.packaged {
				c.files = append(c.files, packaged)
			}
			for _, file := range c.files {
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := defaultConfig(packaged); got != c.want {
				t.Errorf("with %v: got %s, want %s", c.files, got, c.want)
			}
		})
	}
}

// A configuration that this user may not see is named, and not taken for one that does not exist.
func TestConfigurationThatCannotBeAccessedIsNamed(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := defaultConfig("file/config.yaml"), "file/config.yaml"; got != want { // ENOTDIR, as root has no EACCES
		t.Errorf("got %s, want %s", got, want)
	}
}
