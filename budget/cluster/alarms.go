package cluster

import (
	"context"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"basegate/budget"
)

// raiseAlarms takes the alarms that the calls of any gateway have left in the database, each in one gateway, and raises them.
func (l *Ledger) raiseAlarms(ctx context.Context) {
	if l.settings.Alarm == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	rows, err := l.db.Pool().Query(ctx, `SELECT percent, key, account, cap FROM ledger_alarms_v1()`)
	if err != nil {
		return // the lanes log an outage
	}
	var (
		a  budget.Alarm
		of refusal
	)
	_, err = pgx.ForEachRow(rows, []any{&a.Percent, &a.Key, &a.Account, &of}, func() error {
		a.Cap = budget.Exceeded(of)
		l.settings.Alarm(a)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		l.log.Warn("alarms of caps could not be read", zap.Error(err))
	}
}
