package cli

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"basegate/budget/quota"
)

// setHelp ends the help of the set commands.
const setHelp = `Values without a flag do not change. A budget is a number of tokens, such as 5_000_000, 500k or 1.5M, or "unbounded".
A running gateway applies the change within a second.`

var errNoFlags = errors.New("nothing to change: a flag is missing")

// asSetCommand turns cmd, whose flags must be defined, into one that changes an existing account or key: it requires a flag,
// and its help shows no default for budgets, because those without a flag stay unchanged.
func asSetCommand(cmd *cobra.Command) *cobra.Command {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.DefValue == quota.Unbounded().String() {
			f.DefValue = ""
		}
	})
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if !flagGiven(cmd) {
			return errNoFlags
		}
		return nil
	}
	return cmd
}

// flagGiven reports whether a flag of a command is given, other than --config.
func flagGiven(cmd *cobra.Command) (given bool) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { given = given || f.Changed })
	return given
}
