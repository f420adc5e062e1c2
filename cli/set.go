package cli

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"basegate/quota"
)

// setHelp is what all set commands have in common.
const setHelp = `What no flag names stays as it is. A budget is a number of tokens, such as 5_000_000, or "unbounded".
A running server obeys within a second.`

var errNothing = errors.New("nothing to change: give a flag")

// setter makes a command, whose flags are all there, one that changes what exists: it wants a flag, and its help calls
// no budget unbounded, since what no flag names stays as it is.
func setter(cmd *cobra.Command) *cobra.Command {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.DefValue == quota.Unbounded().String() {
			f.DefValue = ""
		}
	})
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		given := false
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { given = given || f.Changed })
		if !given {
			return errNothing
		}
		return nil
	}
	return cmd
}
