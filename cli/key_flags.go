package cli

import (
	"time"

	"github.com/spf13/pflag"

	"basegate/gateway/config"
	"basegate/identity"
)

// keyFlags are the flags of key create and key set.
type keyFlags struct {
	flags       *pflag.FlagSet
	name        string
	concurrency int
	budgets     budgetFlags
	expires     *parsedFlag[time.Time]
	models      *parsedFlag[[]string]
	modelList   identity.ModelList // of the flag models
}

func (k *keyFlags) add(flags *pflag.FlagSet) {
	k.flags, k.expires, k.models = flags, newTimeFlag("DATE", parseExpiry), newModelsFlag()
	flags.StringVar(&k.name, "name", "", "what the key is for")
	flags.IntVar(&k.concurrency, "concurrency", 0, "requests at a time; 0: limits.concurrency_per_key")
	flags.Var(k.expires, "expires", `when the key expires: the start of a day, UTC, or a time; or "never"`)
	flags.Var(k.models, "models", `the models that the key may use, or "any"`)
	k.budgets.add(flags)
}

// resolve resolves the models of the flags, which must be in the configuration.
func (k *keyFlags) resolve(cfg *config.Config) (err error) {
	var ids []string
	for _, id := range k.models.value {
		m, err := findModel(cfg, id)
		if err != nil {
			return err
		}
		ids = append(ids, m.ID)
	}
	if len(ids) > 0 {
		k.modelList, err = identity.NewModelList(ids)
	}
	return err
}

// newKey returns the key that the flags describe. Without a flag, it expires as configured.
func (k *keyFlags) newKey(cfg *config.Config, email string) identity.Key {
	key := identity.Key{
		Email: email, Name: k.name, Concurrency: k.concurrency, ExpiresAt: k.expires.value, Models: k.modelList,
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
		f.ExpiresAt, f.Operator.ExpiresAt = k.expires.value, k.expires.value
	}
	if k.flags.Changed("models") {
		f.Models, f.Operator.Models = k.modelList, k.modelList
	}
	k.budgets.apply(&f.Caps)
	k.budgets.apply(&f.Operator.Caps)
}
