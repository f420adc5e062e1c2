package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"basegate/internal/suggest"
)

// This file says what is wrong with a command line, instead of cobra and pflag, whose texts are about Go and its parsers.

// synonyms are words of other programs for the commands of these names.
var synonyms = map[string][]string{
	"add":      {"book", "create", "new"},
	"approve":  {"enable"},
	"cancel":   {"abort", "delete", "stop"},
	"check":    {"doctor", "test", "validate"},
	"create":   {"add", "new", "submit"},
	"delete":   {"remove", "rm"},
	"disable":  {"delete", "remove", "rm"},
	"download": {"cat", "get"},
	"list":     {"get", "ls", "show"},
	"pause":    {"disable", "stop"},
	"remove":   {"delete", "rm"},
	"resume":   {"enable"},
	"revoke":   {"delete", "remove", "rm"},
	"serve":    {"run", "start"},
	"set":      {"edit", "update"},
	"show":     {"get", "status"},
	"warm":     {"load", "start"},
}

// suggestions returns the commands that may be meant by a word that is none of a group: those of the group for which it is a
// synonym, or the one with the nearest name; or else those of any group, first those of that very name.
func suggestions(group *cobra.Command, word string) []string {
	if found := similar(group, word); len(found) > 0 {
		return found
	}
	var same, others []string
	var walk func(g *cobra.Command)
	walk = func(g *cobra.Command) {
		for _, c := range g.Commands() {
			if c.Name() == word {
				same = append(same, prefixOf(g)+word)
			}
			walk(c)
		}
		others = append(others, similar(g, word)...)
	}
	walk(group.Root())
	if len(same) > 0 {
		return same
	}
	return others
}

// similar returns the commands of a group for which a word is a synonym, or else the one with the nearest name.
func similar(group *cobra.Command, word string) (found []string) {
	for _, c := range group.Commands() {
		if slices.Contains(synonyms[c.Name()], word) {
			found = append(found, prefixOf(group)+c.Name())
		}
	}
	if name := nearest(word, commandNames(group)); len(found) == 0 && name != "" {
		found = []string{prefixOf(group) + name}
	}
	return found
}

// nearest returns the known name that a word misspells, or that begins with it; empty if there is none.
func nearest(word string, known []string) string {
	if found := suggest.Nearest(word, slices.Values(known), func(name string) int { return (len(name) + 1) / 3 }); found != "" {
		return found
	}
	i := slices.IndexFunc(known, func(name string) bool { return strings.HasPrefix(name, word) })
	if i < 0 {
		return ""
	}
	return known[i]
}

// prefixOf returns the words of a command before those below it, such as "model window ".
func prefixOf(c *cobra.Command) string {
	_, below, _ := strings.Cut(c.CommandPath()+" ", " ")
	return below
}

func unknownCommand(group *cobra.Command, word string) error {
	hint := "there are " + strings.Join(commandNames(group), ", ")
	switch found := suggestions(group, word); len(found) {
	case 0:
	case 1:
		hint = fmt.Sprintf("did you mean %q?", found[0])
	default:
		hint = "did you mean one of these: " + strings.Join(found, ", ") + "?"
	}
	return fmt.Errorf("unknown command %q; %s", prefixOf(group)+word, hint)
}

func commandNames(group *cobra.Command) (names []string) {
	for _, c := range group.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// checkCommand is the check of the arguments of a group, which gets those that are none of its commands.
func checkCommand(group *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(group, args[0])
	}
	return fmt.Errorf("%swhich command? There are %s", label(group), strings.Join(commandNames(group), ", "))
}

// checkTopic is the check of the arguments of help, which are the words of a command.
func checkTopic(help *cobra.Command, args []string) error {
	found, rest, err := help.Root().Find(args)
	if err == nil && len(rest) > 0 && found.HasSubCommands() {
		return unknownCommand(found, rest[0])
	}
	return err
}

// excludedFlag is the annotation of a flag with the flags that it may not stand beside.
const excludedFlag = "basegate_excluded"

// excludeFlags makes a flag of a command exclude others.
func excludeFlags(cmd *cobra.Command, one string, others ...string) {
	for _, other := range others {
		cmd.MarkFlagsMutuallyExclusive(one, other) // for completion
	}
	cobra.CheckErr(cmd.Flags().SetAnnotation(one, excludedFlag, others)) // fails only for a flag that is not defined
}

// checkArguments is the check of a command's arguments: it names those of the usage line that are missing, or the first one
// too many, and the flags that are missing or exclude each other.
func checkArguments(cmd *cobra.Command, args []string) error {
	names := argumentNames(cmd)
	if len(args) > len(names) {
		return fmt.Errorf("one argument too many: %q", args[len(names)])
	}
	missing := slices.DeleteFunc(names[len(args):], func(name string) bool { return strings.HasPrefix(name, "[") }) // optional
	var flags []string
	var err error
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Annotations[cobra.BashCompOneRequiredFlag] != nil && !f.Changed {
			flags = append(flags, "--"+f.Name)
		}
		for _, other := range f.Annotations[excludedFlag] {
			if f.Changed && cmd.Flag(other).Changed {
				err = fmt.Errorf("--%s and --%s exclude each other", f.Name, other)
			}
		}
	})
	number, noun := len(missing)+len(flags), "required flag "
	if len(flags) > 1 {
		noun = "required flags "
	}
	if len(flags) > 0 {
		flags[0] = noun + flags[0]
	}
	text := strings.Join(slices.Concat(missing, flags), " and ")
	switch number {
	case 0:
		return err
	case 1:
		return fmt.Errorf("%s is missing", text)
	default:
		return fmt.Errorf("%s are missing", text)
	}
}

// argumentNames returns the arguments in the usage line of a command. An optional one begins with a bracket.
func argumentNames(cmd *cobra.Command) []string {
	arguments, _, _ := strings.Cut(cmd.Use, " --")
	return strings.Fields(arguments)[1:]
}

// flagError returns an error of pflag in words for the user.
func flagError(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
		return unknownCommand(cmd, words[0]) // the flag may be right for the command that is meant
	}
	if invalid, is := errors.AsType[*pflag.InvalidValueError](err); is {
		f := invalid.GetFlag()
		return fmt.Errorf("--%s: %s, got %q", f.Name, wantedValue(f, invalid.Unwrap()), invalid.GetValue())
	}
	if missing, is := errors.AsType[*pflag.ValueRequiredError](err); is {
		return fmt.Errorf("--%s needs a value", missing.GetFlag().Name)
	}
	if unknown, is := errors.AsType[*pflag.NotExistError](err); is {
		return unknownFlag(cmd, unknown)
	}
	if wrong, is := errors.AsType[*pflag.InvalidSyntaxError](err); is {
		return fmt.Errorf("%q is not a flag", wrong.GetSpecifiedFlag())
	}
	return err
}

// wantedValue says which values a flag takes. Those that parsedFlag parses say it themselves.
func wantedValue(f *pflag.Flag, err error) string {
	switch f.Value.Type() {
	case "bool":
		return "want true or false"
	case "int":
		if errors.Is(err, strconv.ErrRange) {
			return "want a smaller number"
		}
		return "want a whole number"
	case "duration":
		return "want a duration such as 90s, 5m or 24h"
	}
	return err.Error()
}

// unknownFlag returns the error that a command does not have a flag, with the nearest that it has.
func unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	written, name := "--"+unknown.GetSpecifiedName(), unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); letters != "" {
		written, name = "-"+letters, letters // also of a name with one dash
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	if meant := nearest(name, known); meant != "" {
		return fmt.Errorf("unknown flag: %s; did you mean --%s?", written, meant)
	}
	return fmt.Errorf("unknown flag: %s", written)
}

// usageError returns the text of an error of a command's arguments: with the command, its usage line and where its help is.
func usageError(cmd *cobra.Command, err error) string {
	if cmd.Name() == "help" {
		cmd = cmd.Root()
	}
	if cmd.HasSubCommands() { // its usage line says nothing
		return fmt.Sprintf("basegate: %v\nSee %s --help.", err, cmd.CommandPath())
	}
	return fmt.Sprintf("basegate: %s%v\nUsage: %s\nSee %s --help.", label(cmd), err, cmd.UseLine(), cmd.CommandPath())
}

// label returns a command in front of its error, such as "key create: "; nothing for basegate itself.
func label(cmd *cobra.Command) string {
	if words := strings.TrimSpace(prefixOf(cmd)); words != "" {
		return words + ": "
	}
	return ""
}
