package usage

import (
	"context"
	"database/sql"

	"basegate/database"
)

// ended is what rollups need of a row of requests.
type ended struct {
	seq, time                int64
	series                   seriesKey
	tag                      string
	stream, failed           bool
	prompt, completion       int64
	queue, firstToken, total int64 // microseconds
}

// endedColumns are the columns that scanEnded scans after the row's number.
const endedColumns = `time, account_id, key_id, model, endpoint, workload, user_tag, stream, ` + failedCondition + `,
	prompt_tokens, completion_tokens, queue_us, first_token_us, total_us`

func scanEnded(rows *sql.Rows) (e ended, err error) {
	err = rows.Scan(&e.seq, &e.time, &e.series.account, &e.series.key, &e.series.model, &e.series.endpoint, &e.series.workload,
		&e.tag, &e.stream, &e.failed, &e.prompt, &e.completion, &e.queue, &e.firstToken, &e.total)
	return e, err
}

// selectEnded returns the oldest rows that are not in the rollups, about limit of them: those of one number are not
// parted.
func selectEnded(ctx context.Context, from source, after int64, limit int) ([]ended, error) {
	found, err := from.QueryContext(ctx, from.next, after, limit)
	if err != nil {
		return nil, err
	}
	all := make([]ended, 0, limit)
	err = each(found, func() error {
		e, err := scanEnded(found)
		all = append(all, e)
		return err
	})
	return all, err
}

// seriesKey is what the requests of a series have in common.
type seriesKey struct {
	account, key, model, endpoint, workload string
}

// tagKey is what the requests of a rollup of user tags have in common.
type tagKey struct {
	account, key, tag string
}

// counts are the sums of a rollup.
type counts struct {
	requests, errors, streams, prompt, completion int64
}

// add adds n times what a request counts; n is 1, or -1 to take it out.
func (c *counts) add(e *ended, n int64) {
	c.requests += n
	c.prompt += n * e.prompt
	c.completion += n * e.completion
	if e.failed {
		c.errors += n
	}
	if e.stream {
		c.streams += n
	}
}

func (c *counts) plus(n *counts) {
	c.requests += n.requests
	c.errors += n.errors
	c.streams += n.streams
	c.prompt += n.prompt
	c.completion += n.completion
}

// rollup is a change of one rollup of a series.
type rollup struct {
	counts
	latency Latency
}

func (r *rollup) add(e *ended, n int64) {
	r.counts.add(e, n)
	if !e.failed {
		r.latency.record(e.queue, e.firstToken, e.total, n)
	}
}

// batch is the sum of some requests, by rollup.
type batch struct {
	series map[seriesKey]map[levelPeriod]*rollup
	tags   map[tagKey]map[levelPeriod]*counts
	size   int // number of rollups
}

// levelPeriod is a period of a level.
type levelPeriod struct {
	level  *level
	period int64
}

func newBatch() *batch {
	return &batch{series: map[seriesKey]map[levelPeriod]*rollup{}, tags: map[tagKey]map[levelPeriod]*counts{}}
}

// add adds a request n times; n is 1 or -1.
func (b *batch) add(e *ended, n int64) {
	b.addSeries(e, n)
	tag := tagKey{e.series.account, e.series.key, e.tag}
	for _, l := range []*level{tagDays, tagMonths} {
		find(b, b.tags, tag, l, e.time).add(e, n)
	}
}

// addSeries is add for the rollups of series only.
func (b *batch) addSeries(e *ended, n int64) {
	for _, l := range []*level{hours, days} {
		find(b, b.series, e.series, l, e.time).add(e, n)
	}
}

// find returns the change of a rollup, and creates it if it does not exist.
func find[K comparable, R any](b *batch, all map[K]map[levelPeriod]*R, key K, l *level, at int64) *R {
	periods := all[key]
	if periods == nil {
		periods = map[levelPeriod]*R{}
		all[key] = periods
	}
	p := levelPeriod{l, l.number(at)}
	r := periods[p]
	if r == nil {
		r = new(R)
		periods[p] = r
		b.size++
	}
	return r
}

// ids caches the numbers of series, keys and tags. They are valid for as long as the transactions that have read or
// assigned them are committed.
type ids struct {
	series map[seriesKey]int64
	keys   map[tagKey]int64 // without a tag
	tags   map[string]int64
	named  map[tagPeriod]int64 // how many tags of a key have rollups of their own in a period
}

type tagPeriod struct {
	level       *level
	key, period int64
}

// maxCachedIDs limits the entries of each cache.
const maxCachedIDs = 1 << 16

func newIDs() *ids {
	return &ids{
		series: map[seriesKey]int64{}, keys: map[tagKey]int64{}, tags: map[string]int64{}, named: map[tagPeriod]int64{},
	}
}

// cached returns what a cache has for key, or else what read returns.
func cached[K comparable](cache map[K]int64, key K, read func() (int64, error)) (int64, error) {
	if id, ok := cache[key]; ok {
		return id, nil
	}
	id, err := read()
	if err != nil {
		return 0, err
	}
	if len(cache) >= maxCachedIDs {
		clear(cache)
	}
	cache[key] = id
	return id, nil
}

// apply adds the batch to the rollups.
func (b *batch) apply(ctx context.Context, tx database.Tx, known *ids) error {
	for key, periods := range b.series {
		id, err := cached(known.series, key, func() (int64, error) { return seriesID(ctx, tx, key) })
		if err != nil {
			return err
		}
		for p, change := range periods {
			if err := addRollup(ctx, tx, id, p, change); err != nil {
				return err
			}
		}
	}
	for key, periods := range b.tags {
		owner := tagKey{account: key.account, key: key.key}
		id, err := cached(known.keys, owner, func() (int64, error) { return keyID(ctx, tx, owner) })
		if err != nil {
			return err
		}
		for p, change := range periods {
			if err := known.addTag(ctx, tx, tagPeriod{p.level, id, p.period}, key.tag, change); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxNamedTags limits the user tags of a key that have rollups of their own, in each period.
var maxNamedTags int64 = 10_000

// otherTags is the number that stands for the tags without rollups of their own.
const otherTags = 0

// addTag adds a change to the rollup of a tag, or to that of the other tags if the tag has none and may have none.
func (k *ids) addTag(ctx context.Context, tx database.Tx, p tagPeriod, tag string, change *counts) error {
	id, known := k.tags[tag]
	var err error
	if !known {
		if id, err = selectTagID(ctx, tx, tag); err != nil {
			return err
		}
	}
	if id != otherTags {
		if added, err := updateTag(ctx, tx, p, id, change); err != nil || added {
			k.remember(tag, id)
			return err
		}
	}
	named, err := cached(k.named, p, func() (int64, error) { return countTags(ctx, tx, p) })
	if err != nil {
		return err
	}
	if named >= maxNamedTags {
		if added, err := updateTag(ctx, tx, p, otherTags, change); err != nil || added {
			return err
		}
		return insertTag(ctx, tx, p, otherTags, change)
	}
	if id == otherTags {
		if id, err = insertTagID(ctx, tx, tag); err != nil {
			return err
		}
	}
	k.remember(tag, id)
	k.named[p] = named + 1
	return insertTag(ctx, tx, p, id, change)
}

func (k *ids) remember(tag string, id int64) {
	if len(k.tags) >= maxCachedIDs {
		clear(k.tags)
	}
	k.tags[tag] = id
}
