package usage

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// DecodeSpeeds returns for each model the median decode speed of its streams since a time, in tokens a second: of the tokens
// after the first one. Streams that did not succeed do not count. It looks only among the newest 20,000 requests.
func (s *Store) DecodeSpeeds(ctx context.Context, since time.Time) (speeds map[string]float64, err error) {
	all := map[string][]float64{}
	err = s.report(ctx, "", reportWait, func(ctx context.Context, from source) error {
		var q statement
		q.addParam(`SELECT model, completion_tokens, total_us - first_token_us FROM (
				SELECT model, stream, code, state, completion_tokens, first_token_us, total_us FROM requests
				WHERE time >= `, since.UnixMicro())
		q.addParam(` ORDER BY time DESC LIMIT `, maxSearched)
		q.add(`) newest
			WHERE stream AND code = '' AND state = 'settled' AND completion_tokens > 1
				AND first_token_us > 0 AND total_us > first_token_us`)
		return q.each(ctx, from, func(rows *sql.Rows) error {
			var model string
			var tokens, micros int64
			err := rows.Scan(&model, &tokens, &micros)
			all[model] = append(all[model], float64(tokens-1)/(time.Duration(micros)*time.Microsecond).Seconds())
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read decode speeds: %w", err)
	}
	speeds = map[string]float64{}
	for model, of := range all {
		slices.Sort(of)
		middle := len(of) / 2
		speeds[model] = (of[(len(of)-1)/2] + of[middle]) / 2
	}
	return speeds, nil
}
