package cli

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"basegate/database"
	"basegate/fleet"
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
	children    bool
	adapters    bool
}

func (k *keyFlags) add(flags *pflag.FlagSet) {
	k.flags, k.expires, k.models = flags, newTimeFlag("DATE", parseExpiry), newModelsFlag()
	flags.StringVar(&k.name, "name", "", "what the key is for")
	flags.IntVar(&k.concurrency, "concurrency", 0, "requests at a time; 0: limits.concurrency_per_key")
	flags.Var(k.expires, "expires", `when the key expires: the start of a day, UTC, or a time; or "never"`)
	flags.Var(k.models, "models", `the models that the key may use, or "any"`)
	flags.BoolVar(&k.children, "children", false, "the key may make keys, by POST /v1/keys; without the flag limits.children says")
	flags.BoolVar(&k.adapters, "adapters", false, "the key may add LoRA adapters from adapters_dir of a model")
	k.budgets.add(flags)
}

// resolve resolves the models of the flags, which must be in the configuration, or adapters of such.
func (k *keyFlags) resolve(ctx context.Context, cfg *config.Config, db *database.DB) (err error) {
	if len(k.models.value) == 0 {
		return nil
	}
	var ids []string
	adapters, err := fleet.Adapters(ctx, db, cfg.Models)
	if err != nil {
		return err
	}
	for _, id := range k.models.value {
		if slices.ContainsFunc(adapters, func(a fleet.Adapter) bool { return a.ID == id }) {
			ids = append(ids, id)
			continue
		}
		m, err := findModel(cfg, id)
		if err != nil {
			return err
		}
		ids = append(ids, m.ID)
	}
	k.modelList, err = identity.NewModelList(ids)
	return err
}

// newKey returns the key that the flags describe. Without a flag, it expires as configured.
func (k *keyFlags) newKey(cfg *config.Config, email string) identity.Key {
	key := identity.Key{Email: email}
	k.apply(&key)
	if lifetime := cfg.Limits.KeyLifetime; lifetime > 0 && !k.flags.Changed("expires") {
		key.ExpiresAt = time.Now().Add(lifetime)
	}
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
	if k.flags.Changed("children") {
		f.Children = sql.NullBool{Bool: k.children, Valid: true}
	}
	if k.flags.Changed("adapters") {
		f.Adapters = k.adapters
	}
	k.budgets.apply(&f.Caps)
	k.budgets.apply(&f.Operator.Caps)
}
