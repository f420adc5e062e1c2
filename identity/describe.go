package identity

import (
	"fmt"
	"strconv"
	"strings"
)

// This file has the details of entries in the audit log.

func (k Key) describe() string {
	return join(
		part{true, k.title()},
		part{true, k.Caps.String()},
		part{k.Concurrency > 0, "concurrency " + strconv.Itoa(k.Concurrency)},
		part{!k.ExpiresAt.IsZero(), "expires " + expiryText(k.ExpiresAt)},
		part{!k.Models.Any(), "models " + k.Models.String()},
		part{k.Parent != "", "made by " + k.Parent},
		part{k.Run != "", "run " + k.Run},
		part{k.Children.Valid, "makes keys " + k.childrenText()},
		part{k.Adapters, "may add adapters"},
	)
}

// childrenText says whether the key may make keys.
func (k Key) childrenText() string {
	if !k.Children.Valid {
		return "default"
	}
	return yesOrNo(k.Children.Bool)
}

func (k Key) title() string { return fmt.Sprintf("%s (%s) of %s", k.Name, k.Prefix, k.Email) }

func describeKeyChange(before, after Key) string {
	var changes changeList
	changes.add("", before.stateText(), after.stateText())
	changes.add("name ", before.Name, after.Name)
	changes = append(changes, before.Caps.Changes(after.Caps)...)
	changes.add("concurrency ", concurrencyText(before.Concurrency), concurrencyText(after.Concurrency))
	changes.add("expires ", expiryText(before.ExpiresAt), expiryText(after.ExpiresAt))
	changes.add("models ", before.Models.String(), after.Models.String())
	changes.add("makes keys ", before.childrenText(), after.childrenText())
	changes.add("running requests ended ", strconv.FormatInt(before.Stops, 10), strconv.FormatInt(after.Stops, 10))
	changes.add("may add adapters ", yesOrNo(before.Adapters), yesOrNo(after.Adapters))
	changes.add("limits of the operator: ", before.Operator.String(), after.Operator.String())
	return before.title() + ": " + changes.String()
}

// stateText returns the state, and whether the operator has paused the key.
func (k Key) stateText() string {
	if k.PausedByOperator {
		return "paused by the operator"
	}
	return string(k.State)
}

func (a Account) describe() string {
	return join(
		part{a.Admin, "administrator"},
		part{true, a.Caps.String()},
		part{a.Concurrency > 0, maxConcurrencyName + strconv.Itoa(a.Concurrency)},
	)
}

// part is a part of a description, if it applies.
type part struct {
	applies bool
	text    string
}

func join(parts ...part) string {
	var texts []string
	for _, p := range parts {
		if p.applies {
			texts = append(texts, p.text)
		}
	}
	return strings.Join(texts, ", ")
}

func describeAccountChange(before, after Account) string {
	var changes changeList
	changes.add("name ", strconv.Quote(before.Name), strconv.Quote(after.Name))
	changes.add("administrator ", yesOrNo(before.Admin), yesOrNo(after.Admin))
	changes = append(changes, before.Caps.Changes(after.Caps)...)
	changes.add(maxConcurrencyName, concurrencyText(before.Concurrency), concurrencyText(after.Concurrency))
	return changes.String()
}

const maxConcurrencyName = "highest concurrency of a key "

// changeList is a list of "before → after".
type changeList []string

// add appends a change if there is one.
func (l *changeList) add(name, before, after string) {
	if before != after {
		*l = append(*l, name+before+" → "+after)
	}
}

// String joins the changes, or returns "no change".
func (l changeList) String() string {
	if len(l) == 0 {
		return "no change"
	}
	return strings.Join(l, ", ")
}

// concurrencyText formats a concurrency, 0 of which is the configured default.
func concurrencyText(n int) string {
	if n == 0 {
		return "default"
	}
	return strconv.Itoa(n)
}

func yesOrNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
