package prompts

import (
	"context"
	"encoding/json"
	"fmt"

	"basegate/database"
)

// MaxPresets limits the presets of an account.
const MaxPresets = 100

// ErrTooManyPresets is returned by SavePreset.
var ErrTooManyPresets = fmt.Errorf("the account has %d presets already", MaxPresets)

// Preset is a set of parameters with a name, also as the workbench sends and receives it.
type Preset struct {
	Mode     string          `json:"mode"` // completion or chat
	Name     string          `json:"name"`
	Settings json.RawMessage `json:"settings"`
}

// Presets returns the presets of an account, in the order of their names.
func (s *Store) Presets(ctx context.Context, account string) ([]Preset, error) {
	const text = `SELECT mode, name, settings FROM presets WHERE account_id = $1 ORDER BY name, mode`
	all, err := database.List(ctx, s.db.Read(), func(row database.Scanner) (p Preset, err error) {
		var settings string
		err = row.Scan(&p.Mode, &p.Name, &settings)
		p.Settings = json.RawMessage(settings)
		return p, err
	}, text, account)
	if err != nil {
		return nil, fmt.Errorf("read presets: %w", err)
	}
	return append([]Preset{}, all...), nil // none is [] in JSON
}

// SavePreset stores a preset of an account, in the place of the one of the same mode and name. The error may be ErrTooManyPresets.
func (s *Store) SavePreset(ctx context.Context, account string, p Preset) error {
	return s.write(ctx, account, "save preset", func(tx database.Tx) error {
		var others int
		const count = `SELECT count(*) FROM presets WHERE account_id = $1 AND NOT (mode = $2 AND name = $3)`
		if err := tx.QueryRowContext(ctx, count, account, p.Mode, p.Name).Scan(&others); err != nil {
			return err
		}
		if others >= MaxPresets {
			return ErrTooManyPresets
		}
		const text = `INSERT INTO presets (account_id, mode, name, settings) VALUES ($1, $2, $3, $4)
			ON CONFLICT (account_id, mode, name) DO UPDATE SET settings = excluded.settings`
		return database.Exec(ctx, tx, text, account, p.Mode, p.Name, string(p.Settings))
	})
}

// DeletePreset deletes a preset of an account, if there is one of that mode and name.
func (s *Store) DeletePreset(ctx context.Context, account, mode, name string) error {
	return s.write(ctx, account, "delete preset", func(tx database.Tx) error {
		return database.Exec(ctx, tx, `DELETE FROM presets WHERE account_id = $1 AND mode = $2 AND name = $3`, account, mode, name)
	})
}
