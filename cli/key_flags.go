package cli

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"basegate/gateway/config"
	"basegate/identity"
)

// expiryFlag is a flag's value: a day, UTC, at whose start a key expires, a time, or "never".
type expiryFlag struct{ at time.Time }

const never = "never"

var errExpiry = errors.New(`expected a day such as 2027-01-31, a time such as 2027-01-31T09:30:00Z, or "never"`)

// Set implements pflag.Value.
func (f *expiryFlag) Set(text string) error {
	if text == never {
		f.at = time.Time{}
		return nil
	}
	var date dateFlag
	if date.Set(text) != nil {
		return errExpiry
	}
	f.at = date.at
	return nil
}

// String implements pflag.Value.
func (f *expiryFlag) String() string { return formatFlag(f.at) }

// Type implements pflag.Value; help shows it in place of the value.
func (*expiryFlag) Type() string { return "DATE" }

// modelsFlag is a flag's value: short ids of models, separated by commas, or "any".
type modelsFlag struct{ ids []string }

var errModels = errors.New(`expected ids of models, separated by commas, or "any"`)

// Set implements pflag.Value.
func (f *modelsFlag) Set(text string) error {
	f.ids = nil
	if text == (identity.ModelList{}).String() {
		return nil
	}
	for id := range strings.SplitSeq(text, ",") {
		if id = strings.TrimSpace(id); id == "" {
			return errModels
		}
		f.ids = append(f.ids, id)
	}
	return nil
}

// String implements pflag.Value.
func (f *modelsFlag) String() string { return strings.Join(f.ids, ",") }

// Type implements pflag.Value; help shows it in place of the value.
func (*modelsFlag) Type() string { return "ID,..." }

// list returns the models of the flag by their short ids. They must be in the configuration.
func (f *modelsFlag) list(cfg *config.Config) (identity.ModelList, error) {
	if len(f.ids) == 0 {
		return identity.ModelList{}, nil
	}
	var ids []string
	for _, id := range f.ids {
		m, err := findModel(cfg, id)
		if err != nil {
			return identity.ModelList{}, err
		}
		ids = append(ids, m.ID)
	}
	return identity.NewModelList(ids)
}

// keyFlags are the flags of key create and key set.
type keyFlags struct {
	flags       *pflag.FlagSet
	name        string
	concurrency int
	budgets     budgetFlags
	expires     expiryFlag
	models      modelsFlag
	modelList   identity.ModelList // of the flag models
}

func (k *keyFlags) add(flags *pflag.FlagSet) {
	k.flags = flags
	flags.StringVar(&k.name, "name", "", "what the key is for")
	flags.IntVar(&k.concurrency, "concurrency", 0, "requests at a time; 0: limits.concurrency_per_key")
	flags.Var(&k.expires, "expires", `when the key expires: the start of a day, UTC, or a time; or "never"`)
	flags.Var(&k.models, "models", `the models that the key may use, or "any"`)
	k.budgets.add(flags)
}

// resolve resolves the models of the flags.
func (k *keyFlags) resolve(cfg *config.Config) (err error) {
	k.modelList, err = k.models.list(cfg)
	return err
}

// newKey returns the key that the flags describe. Without a flag, it expires as configured.
func (k *keyFlags) newKey(cfg *config.Config, email string) identity.Key {
	key := identity.Key{
		Email: email, Name: k.name, Concurrency: k.concurrency, ExpiresAt: k.expires.at, Models: k.modelList,
	}
	if lifetime := cfg.Limits.KeyLifetime; lifetime > 0 && !k.flags.Changed("expires") {
		key.ExpiresAt = time.Now().Add(lifetime)
	}
	k.budgets.apply(&key.Caps)
	return key
}

// apply changes the fields whose flags are given. They become limits of the operator, also those to which the user has
// set the same value.
func (k *keyFlags) apply(f *identity.Key) {
	if k.flags.Changed("name") {
		f.Name = k.name
	}
	if k.flags.Changed("concurrency") {
		f.Concurrency, f.Operator.Concurrency = k.concurrency, k.concurrency
	}
	if k.flags.Changed("expires") {
		f.ExpiresAt, f.Operator.ExpiresAt = k.expires.at, k.expires.at
	}
	if k.flags.Changed("models") {
		f.Models, f.Operator.Models = k.modelList, k.modelList
	}
	k.budgets.apply(&f.Caps)
	k.budgets.apply(&f.Operator.Caps)
}
