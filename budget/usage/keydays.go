package usage

import (
	"context"
	"fmt"
	"time"

	"basegate/database"
)

// KeyDay is the usage of one key on one day, UTC.
type KeyDay struct {
	Key, Account                   string
	Day                            time.Time // its start
	PromptTokens, CompletionTokens int64
}

// KeyDays calls each with parts of the usage of every key and day in a range of whole days, which add up to the usage of
// all requests that have ended. It reads without the limits of a report: the rollups have few rows for each key and day.
func KeyDays(ctx context.Context, db *database.DB, since, until time.Time, each func(KeyDay)) error {
	tx, err := db.Read().BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("read usage by key and day: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	if err := selectKeyDays(ctx, source{tx, dialectOf(db)}, since, until, each); err != nil {
		return fmt.Errorf("read usage by key and day: %w", err)
	}
	return nil
}

func selectKeyDays(ctx context.Context, from source, since, until time.Time, do func(KeyDay)) error {
	const rollups = `
			SELECT s.key_id, s.account_id, u.period, sum(u.prompt_tokens), sum(u.completion_tokens)
			FROM usage_series s JOIN usage_days u ON u.series = s.id AND u.period >= $1 AND u.period < $2
			GROUP BY s.key_id, s.account_id, u.period`
	now, err := from.freezeRollups(ctx)
	if err != nil {
		return err
	}
	first, end := since.UnixMicro(), until.UnixMicro()
	var rows statement
	rows.add(`SELECT key_id, account_id, ` + dayDimension.row + `, sum(prompt_tokens), sum(completion_tokens) FROM requests` +
		from.noIndex + ` WHERE true`)
	rows.addCondition(from.above, now.seq)
	rows.addMark(from.dialect, now.at)
	rows.addParam(` AND time >= `, first)
	rows.addParam(` AND time < `, end)
	rows.add(` GROUP BY key_id, account_id, ` + dayDimension.row)
	scan := func(text string, args ...any) error {
		found, err := from.QueryContext(ctx, text, args...)
		if err != nil {
			return err
		}
		return each(found, func() error {
			var (
				d   KeyDay
				day int64
			)
			err := found.Scan(&d.Key, &d.Account, &day, &d.PromptTokens, &d.CompletionTokens)
			d.Day = time.UnixMicro(days.start(day)).UTC()
			do(d)
			return err
		})
	}
	if err := scan(rollups, days.number(first), days.number(end)); err != nil {
		return err
	}
	return scan(rows.text.String(), rows.args...)
}
