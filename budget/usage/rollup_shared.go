package usage

import (
	"context"
	"fmt"

	"basegate/database"
)

// applyShared is apply for PostgreSQL: a few statements for all rollups, because each is a round trip to the server. The
// caller has locked the rollups, so what is read stays true.
func (b *batch) applyShared(ctx context.Context, tx database.Tx, known *ids) error {
	if err := known.findSeries(ctx, tx, b.series); err != nil {
		return err
	}
	for _, l := range []*level{hours, days} {
		if err := b.upsertSeries(ctx, tx, known, l); err != nil {
			return err
		}
	}
	if err := known.findKeys(ctx, tx, b.tags); err != nil {
		return err
	}
	if err := known.findTags(ctx, tx, b.tags); err != nil {
		return err
	}
	for _, l := range []*level{tagDays, tagMonths} {
		if err := b.upsertTags(ctx, tx, known, l); err != nil {
			return err
		}
	}
	return nil
}

// columns are arrays of one length, which a statement unnests.
type columns struct {
	ids, periods, tags                            []int64
	requests, errors, streams, prompt, completion []int64
	latencies                                     [][]byte
}

func (c *columns) addCounts(n *counts) {
	c.requests = append(c.requests, n.requests)
	c.errors = append(c.errors, n.errors)
	c.streams = append(c.streams, n.streams)
	c.prompt = append(c.prompt, n.prompt)
	c.completion = append(c.completion, n.completion)
}

// findSeries makes known the numbers of all series of a batch, and assigns those that are missing.
func (k *ids) findSeries(ctx context.Context, tx database.Tx, all map[seriesKey]map[levelPeriod]*rollup) error {
	const (
		insert = `
			INSERT INTO usage_series (account_id, key_id, model, endpoint, workload)
			SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
			ON CONFLICT DO NOTHING`
		find = `
			SELECT s.id, s.account_id, s.key_id, s.model, s.endpoint, s.workload
			FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
				AS k(account_id, key_id, model, endpoint, workload)
			JOIN usage_series s USING (account_id, key_id, model, endpoint, workload)`
	)
	var accounts, keys, models, endpoints, workloads []string
	if len(k.series)+len(all) > maxCachedIDs {
		clear(k.series)
	}
	for s := range all {
		if _, ok := k.series[s]; !ok {
			accounts, keys, models = append(accounts, s.account), append(keys, s.key), append(models, s.model)
			endpoints, workloads = append(endpoints, s.endpoint), append(workloads, s.workload)
		}
	}
	return insertAndFind(ctx, tx, insert, find, func(scan func(...any) error) error {
		var (
			s  seriesKey
			id int64
		)
		err := scan(&id, &s.account, &s.key, &s.model, &s.endpoint, &s.workload)
		k.series[s] = id
		return err
	}, accounts, keys, models, endpoints, workloads)
}

// findKeys makes known the numbers of all keys of a batch, and assigns those that are missing.
func (k *ids) findKeys(ctx context.Context, tx database.Tx, all map[tagKey]map[levelPeriod]*counts) error {
	const (
		insert = `
			INSERT INTO usage_keys (account_id, key_id) SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING`
		find = `
			SELECT s.id, s.account_id, s.key_id FROM unnest($1::text[], $2::text[]) AS k(account_id, key_id)
			JOIN usage_keys s USING (account_id, key_id)`
	)
	missing := map[tagKey]bool{}
	if len(k.keys)+len(all) > maxCachedIDs {
		clear(k.keys)
	}
	for t := range all {
		owner := tagKey{account: t.account, key: t.key}
		if _, ok := k.keys[owner]; !ok {
			missing[owner] = true
		}
	}
	var accounts, keys []string
	for owner := range missing {
		accounts, keys = append(accounts, owner.account), append(keys, owner.key)
	}
	return insertAndFind(ctx, tx, insert, find, func(scan func(...any) error) error {
		var (
			owner tagKey
			id    int64
		)
		err := scan(&id, &owner.account, &owner.key)
		k.keys[owner] = id
		return err
	}, accounts, keys)
}

// findTags makes known the numbers of those user tags of a batch that have one.
func (k *ids) findTags(ctx context.Context, tx database.Tx, all map[tagKey]map[levelPeriod]*counts) error {
	const find = `SELECT id, tag FROM usage_tags WHERE tag = ANY ($1::text[])`
	missing := map[string]bool{}
	if len(k.tags)+len(all) > maxCachedIDs {
		clear(k.tags)
	}
	for t := range all {
		if k.tags[t.tag] == otherTags {
			missing[t.tag] = true
		}
	}
	var tags []string
	for tag := range missing {
		tags = append(tags, tag)
	}
	return insertAndFind(ctx, tx, "", find, k.scanTag, tags)
}

func (k *ids) scanTag(scan func(...any) error) error {
	var (
		tag string
		id  int64
	)
	err := scan(&id, &tag)
	k.tags[tag] = id
	return err
}

// insertAndFind runs two statements with the same arrays, and calls each with the rows of the second one. Without elements
// it does nothing.
func insertAndFind(ctx context.Context, tx database.Tx, insert, find string, row func(scan func(...any) error) error, arrays ...[]string) error {
	if len(arrays[0]) == 0 {
		return nil
	}
	args := make([]any, len(arrays))
	for i := range arrays {
		args[i] = arrays[i]
	}
	if insert != "" {
		if _, err := tx.ExecContext(ctx, insert, args...); err != nil {
			return fmt.Errorf("assign numbers: %w", err)
		}
	}
	found, err := tx.QueryContext(ctx, find, args...) //nolint:sqlclosecheck // each closes it
	if err != nil {
		return fmt.Errorf("find numbers: %w", err)
	}
	return each(found, func() error { return row(found.Scan) })
}

// rollupKey identifies a rollup of a level by the number of its series.
type rollupKey struct{ series, period int64 }

// upsertSeries adds the batch to the rollups of series of one level.
func (b *batch) upsertSeries(ctx context.Context, tx database.Tx, known *ids, l *level) error {
	changes := map[rollupKey]*rollup{}
	var c columns
	for key, periods := range b.series {
		for p, change := range periods {
			if p.level == l {
				k := rollupKey{known.series[key], p.period}
				changes[k] = change
				c.ids, c.periods = append(c.ids, k.series), append(c.periods, k.period)
			}
		}
	}
	if err := mergeLatencies(ctx, tx, l, changes, &c); err != nil {
		return err
	}
	for i := range c.ids {
		change := changes[rollupKey{c.ids[i], c.periods[i]}]
		c.addCounts(&change.counts)
		c.latencies = append(c.latencies, change.latency.encode())
	}
	text := `
		INSERT INTO ` + l.table + ` AS u
			(series, period, requests, errors, streams, prompt_tokens, completion_tokens, latency)
		SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
			$8::bytea[])
		ON CONFLICT (series, period) DO UPDATE SET requests = u.requests + excluded.requests,
			errors = u.errors + excluded.errors, streams = u.streams + excluded.streams,
			prompt_tokens = u.prompt_tokens + excluded.prompt_tokens,
			completion_tokens = u.completion_tokens + excluded.completion_tokens, latency = excluded.latency`
	_, err := tx.ExecContext(ctx, text, c.ids, c.periods, c.requests, c.errors, c.streams, c.prompt, c.completion, c.latencies)
	return err
}

// mergeLatencies adds the latencies that rollups have to their changes.
func mergeLatencies(ctx context.Context, tx database.Tx, l *level, changes map[rollupKey]*rollup, c *columns) error {
	text := `
		SELECT u.series, u.period, u.latency FROM unnest($1::bigint[], $2::bigint[]) AS k(series, period)
		JOIN ` + l.table + ` u USING (series, period)`
	found, err := tx.QueryContext(ctx, text, c.ids, c.periods)
	if err != nil {
		return err
	}
	return each(found, func() error {
		var (
			k       rollupKey
			encoded []byte
		)
		if err := found.Scan(&k.series, &k.period, &encoded); err != nil {
			return err
		}
		if err := changes[k].latency.mergeEncoded(encoded); err != nil {
			return fmt.Errorf("%s, series %d, period %d: %w", l.table, k.series, k.period, err)
		}
		return nil
	})
}

// tagRollup identifies a rollup of a user tag, by the numbers of its key and tag.
type tagRollup struct{ key, period, tag int64 }

// upsertTags adds the batch to the rollups of user tags of one level. A tag that has no rollup may have one if its key has
// not too many.
func (b *batch) upsertTags(ctx context.Context, tx database.Tx, known *ids, l *level) error {
	exist, err := b.existingTags(ctx, tx, known, l)
	if err != nil {
		return err
	}
	sums := map[tagRollup]*counts{}
	added := map[string][]tagChange{} // by tags without a number
	for key, periods := range b.tags {
		owner := known.keys[tagKey{account: key.account, key: key.key}]
		for p, change := range periods {
			if p.level != l {
				continue
			}
			at := tagRollup{owner, p.period, known.tags[key.tag]}
			if !exist[at] {
				named, err := known.mayName(ctx, tx, tagPeriod{l, owner, p.period})
				if err != nil {
					return err
				}
				if named && at.tag == otherTags {
					added[key.tag] = append(added[key.tag], tagChange{at, change})
					continue
				}
				if !named {
					at.tag = otherTags
				}
			}
			addCounts(sums, at, change)
		}
	}
	if err := known.nameTags(ctx, tx, added, sums); err != nil {
		return err
	}
	return upsertTagSums(ctx, tx, l, sums)
}

// tagChange is a change of the rollup of a tag whose number is not known yet.
type tagChange struct {
	at     tagRollup
	change *counts
}

func addCounts(sums map[tagRollup]*counts, at tagRollup, change *counts) {
	if sums[at] == nil {
		sums[at] = new(counts)
	}
	sums[at].plus(change)
}

// mayName reports whether a key may have another rollup of a tag in a period, and counts it if so.
func (k *ids) mayName(ctx context.Context, tx database.Tx, p tagPeriod) (bool, error) {
	named, err := cached(k.named, p, func() (int64, error) { return countTags(ctx, tx, p) })
	if err != nil || named >= maxNamedTags {
		return false, err
	}
	k.named[p] = named + 1
	return true, nil
}

// nameTags assigns numbers to tags and adds their changes to the sums.
func (k *ids) nameTags(ctx context.Context, tx database.Tx, added map[string][]tagChange, sums map[tagRollup]*counts) error {
	const (
		insert = `INSERT INTO usage_tags (tag) SELECT * FROM unnest($1::text[]) ON CONFLICT DO NOTHING`
		find   = `SELECT id, tag FROM usage_tags WHERE tag = ANY ($1::text[])`
	)
	var tags []string
	for tag := range added {
		tags = append(tags, tag)
	}
	if err := insertAndFind(ctx, tx, insert, find, k.scanTag, tags); err != nil {
		return err
	}
	for tag, changes := range added {
		for _, c := range changes {
			c.at.tag = k.tags[tag]
			addCounts(sums, c.at, c.change)
		}
	}
	return nil
}

// existingTags returns which rollups of the batch's tags there are.
func (b *batch) existingTags(ctx context.Context, tx database.Tx, known *ids, l *level) (map[tagRollup]bool, error) {
	var c columns
	for key, periods := range b.tags {
		id := known.tags[key.tag]
		if id == otherTags {
			continue
		}
		owner := known.keys[tagKey{account: key.account, key: key.key}]
		for p := range periods {
			if p.level == l {
				c.ids, c.periods, c.tags = append(c.ids, owner), append(c.periods, p.period), append(c.tags, id)
			}
		}
	}
	exist := map[tagRollup]bool{}
	if len(c.ids) == 0 {
		return exist, nil
	}
	text := `
		SELECT u.key, u.period, u.tag FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS k(key, period, tag)
		JOIN ` + l.table + ` u USING (key, period, tag)`
	found, err := tx.QueryContext(ctx, text, c.ids, c.periods, c.tags)
	if err != nil {
		return nil, err
	}
	err = each(found, func() error {
		var at tagRollup
		err := found.Scan(&at.key, &at.period, &at.tag)
		exist[at] = true
		return err
	})
	return exist, err
}

func upsertTagSums(ctx context.Context, tx database.Tx, l *level, sums map[tagRollup]*counts) error {
	var c columns
	for at, change := range sums {
		c.ids, c.periods, c.tags = append(c.ids, at.key), append(c.periods, at.period), append(c.tags, at.tag)
		c.addCounts(change)
	}
	text := `
		INSERT INTO ` + l.table + ` AS u (key, period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
		SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
			$8::bigint[])
		ON CONFLICT (key, period, tag) DO UPDATE SET requests = u.requests + excluded.requests,
			errors = u.errors + excluded.errors, streams = u.streams + excluded.streams,
			prompt_tokens = u.prompt_tokens + excluded.prompt_tokens,
			completion_tokens = u.completion_tokens + excluded.completion_tokens`
	_, err := tx.ExecContext(ctx, text, c.ids, c.periods, c.tags, c.requests, c.errors, c.streams, c.prompt, c.completion)
	return err
}
