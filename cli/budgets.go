package cli

import (
	"bytes"
	"encoding/json"

	"github.com/spf13/pflag"

	"basegate/budget/quota"
)

// budgetFlags are the flags of the caps of an account or a key.
type budgetFlags struct{ flags *pflag.FlagSet }

// offered returns the caps that commands set and list.
func offered() (all []quota.ID) {
	for id := range quota.Count {
		if quota.Table[id].Help != "" {
			all = append(all, id)
		}
	}
	return all
}

// add adds the flags to a command. Help shows unbounded as their default, which is right for create; asSetCommand removes it.
func (b *budgetFlags) add(flags *pflag.FlagSet) {
	b.flags = flags
	for _, id := range offered() {
		k := &quota.Table[id]
		flags.Var(newCapFlag(quota.Unbounded()), k.Flag(), k.Help)
	}
}

// apply sets the caps whose flags are given and leaves the others as they are.
func (b *budgetFlags) apply(c *quota.Caps) {
	for _, id := range offered() {
		if given := b.flags.Lookup(quota.Table[id].Flag()); given.Changed {
			c[id] = given.Value.(*parsedFlag[quota.Cap]).value
		}
	}
}

// budgets are the caps of an account or a key in lists.
type budgets quota.Caps

// MarshalJSON encodes an object; unbounded is null.
func (b budgets) MarshalJSON() ([]byte, error) {
	text := []byte{'{'}
	for i, id := range offered() {
		if i > 0 {
			text = append(text, ',')
		}
		limit, err := b[id].MarshalJSON()
		if err != nil {
			return nil, err
		}
		text = append(append(text, `"`+quota.Table[id].Member()+`":`...), limit...)
	}
	return append(text, '}'), nil
}

// budgetHeadings returns the headings of the columns of budgets.cells.
func budgetHeadings() (headings []string) {
	for _, id := range offered() {
		headings = append(headings, quota.Table[id].Heading)
	}
	return headings
}

func (b budgets) cells() (cells []string) {
	for _, id := range offered() {
		cell := "-"
		if b[id].Bounded() {
			cell = b[id].String()
		}
		cells = append(cells, cell)
	}
	return cells
}

// joined is encoded as one JSON object with the members of several, which are not empty.
type joined []any

// MarshalJSON implements json.Marshaler.
func (j joined) MarshalJSON() ([]byte, error) {
	objects := make([][]byte, len(j))
	for i, object := range j {
		text, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		objects[i] = text[1 : len(text)-1]
	}
	return append(append([]byte{'{'}, bytes.Join(objects, []byte{','})...), '}'), nil
}
