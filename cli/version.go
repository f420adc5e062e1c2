package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker; see the Makefile.
var version = "dev"

func newVersion() *cobra.Command {
	return newCommand("version", "Print the version", "", func(cmd *cobra.Command, _ []string) error {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
		return err
	})
}

// versionLine returns what version and --version print.
func versionLine() string {
	return fmt.Sprintf("basegate %s %s %s/%s", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// versionText returns the linker's version, or without one the commit that the toolchain recorded.
func versionText() string {
	info, ok := debug.ReadBuildInfo()
	if version != "dev" || !ok {
		return version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return version + "-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return version
}
