package console

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"basegate/budget"
	"basegate/budget/usage"
	"basegate/database"
	"basegate/identity"
)

// sparkDays is the number of days of a sparkline; the last one is today.
const sparkDays = 30

// sparkline draws the tokens of the last days as one path with a bar for each day, in a drawing of 10*sparkDays by 100.
type sparkline struct {
	Path  string // empty if there was no usage
	Total int64
	Days  int
	daily [sparkDays]int64
}

// Text says what the sparkline shows, for those who do not see it.
func (s *sparkline) Text() string {
	return fmt.Sprintf("%s tokens in the last %d days", formatNumber(s.Total), sparkDays)
}

// draw computes the path.
func (s *sparkline) draw() {
	highest := max(slices.Max(s.daily[:]), 1)
	s.Days = sparkDays
	path := make([]byte, 0, 20*sparkDays)
	for i, n := range s.daily {
		s.Total += n
		if n == 0 {
			continue
		}
		height := max(4, int64(100*float64(n)/float64(highest))) // the least that can be seen
		path = append(path, 'M')
		path = strconv.AppendInt(path, int64(10*i+1), 10)
		path = append(path, " 100v-"...)
		path = strconv.AppendInt(path, height, 10)
		path = append(path, "h8V100"...)
	}
	s.Path = string(path)
}

// usual returns the median of the days before today since the first one with usage; ok is false if there are fewer than
// three.
func (s *sparkline) usual() (tokens int64, ok bool) {
	begun := slices.IndexFunc(s.daily[:], func(n int64) bool { return n > 0 })
	if begun < 0 || sparkDays-1-begun < 3 {
		return 0, false
	}
	past := slices.Clone(s.daily[begun : sparkDays-1])
	slices.Sort(past)
	return past[len(past)/2], true
}

// accountActivity is the recent usage of an account and of each of its keys.
type accountActivity struct {
	Spark sparkline
	Keys  map[string]*sparkline // by id
}

// activity reads the recent usage of an account, or of one of its keys, without drawing it. It is nil if too many other
// reports run: a page then goes without it.
func (c *Console) activity(ctx context.Context, account, key string) (*accountActivity, error) {
	first := c.firstSparkDay()
	filter := usage.Filter{Reader: account, Account: account, Key: key, Since: first}
	groups, err := c.usages.Groups(ctx, filter, usage.Over(usage.ByDay, usage.ByKey))
	if errors.Is(err, database.ErrReportsBusy) || errors.Is(err, database.ErrReportTooLong) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	a := &accountActivity{Keys: map[string]*sparkline{}}
	for _, r := range groups[0] {
		at := int(r.Time.Sub(first) / (24 * time.Hour))
		if at < 0 || at >= sparkDays { // a clock was ahead
			continue
		}
		spark := a.Keys[r.KeyID]
		if spark == nil {
			spark = &sparkline{}
			a.Keys[r.KeyID] = spark
		}
		spark.daily[at] += r.PromptTokens + r.CompletionTokens
		a.Spark.daily[at] += r.PromptTokens + r.CompletionTokens
	}
	return a, nil
}

// draw draws all sparklines. Today's usage comes from the ledger's counters, which are in memory.
func (c *Console) draw(a *accountActivity, account string, keys []identity.Key) {
	a.Spark.daily[sparkDays-1] = c.ledger.AccountTotals(account).Day
	for _, k := range keys {
		today := c.ledger.KeyTotals(k.ID).Day
		if a.Keys[k.ID] == nil && today > 0 {
			a.Keys[k.ID] = &sparkline{}
		}
		if spark := a.Keys[k.ID]; spark != nil {
			spark.daily[sparkDays-1] = today
			spark.draw()
		}
	}
	a.Spark.draw()
}

func (c *Console) firstSparkDay() time.Time {
	return c.clock().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1-sparkDays)
}

// pastActivity keeps the usage of the days before today for a minute, by account, because dashboards are read often and
// these days hardly change.
type pastActivity struct {
	mu        sync.Mutex
	byAccount map[string]keptActivity
}

type keptActivity struct {
	readAt time.Time
	first  time.Time // the day with which it begins
	*accountActivity
}

const (
	activityAge   = time.Minute
	maxActivities = 1000 // accounts in memory
)

// clone returns a copy to draw.
func (a *accountActivity) clone() *accountActivity {
	b := &accountActivity{Spark: a.Spark, Keys: map[string]*sparkline{}}
	for id, spark := range a.Keys {
		copied := *spark
		b.Keys[id] = &copied
	}
	return b
}

// dashboardActivity returns the recent usage of an account and its keys. It is nil if it cannot be read in time.
func (c *Console) dashboardActivity(ctx context.Context, account string, keys []keyRow) (*accountActivity, error) {
	if len(keys) == 0 {
		return &accountActivity{}, nil
	}
	p, now, first := &c.past, c.clock(), c.firstSparkDay()
	p.mu.Lock()
	kept, ok := p.byAccount[account]
	p.mu.Unlock()
	if !ok || now.Sub(kept.readAt) >= activityAge || !kept.first.Equal(first) {
		read, err := c.activity(ctx, account, "")
		if err != nil || read == nil {
			return nil, err
		}
		kept = keptActivity{now, first, read}
		p.mu.Lock()
		if p.byAccount == nil || len(p.byAccount) >= maxActivities {
			p.byAccount = map[string]keptActivity{}
		}
		p.byAccount[account] = kept
		p.mu.Unlock()
	}
	a, all := kept.clone(), make([]identity.Key, len(keys))
	for i := range keys {
		all[i] = keys[i].Key
	}
	c.draw(a, account, all)
	return a, nil
}

// summary is the head of the dashboard.
type summary struct {
	Remaining *remaining // of the tightest cap; nil if the account has none
	Today     int64      // tokens
	Usual     string     // how today compares with the usual day; empty if there is none
	Spark     *sparkline // nil if it could not be read in time
	Steps     *firstSteps
}

// remaining is what is left of a cap.
type remaining struct {
	budget.Standing
	Left int64  // tokens
	Name string // of the cap, such as "monthly input"
}

// summary returns the head of the dashboard of an account.
func (c *Console) summary(a identity.Account, keys []keyRow, activity *accountActivity) summary {
	s := summary{Today: c.ledger.AccountTotals(a.ID).Day, Remaining: tightest(c.ledger.AccountStandings(a.ID, a.Caps))}
	if activity != nil {
		s.Spark = &activity.Spark
		if usual, ok := activity.Spark.usual(); ok {
			s.Usual = fmt.Sprintf("A usual day has %s.", formatNumber(usual))
		}
	}
	if !slices.ContainsFunc(keys, func(k keyRow) bool { return !k.LastUse.IsZero() }) {
		s.Steps = c.firstSteps(keys)
	}
	return s
}

// tightest returns the cap with the fewest tokens left; nil if there is none.
func tightest(all []budget.Standing) *remaining {
	var found *remaining
	for _, s := range all {
		left := max(s.Limit-s.Used, 0)
		if found == nil || left < found.Left {
			found = &remaining{s, left, windowNames[s.Window] + meterNames[s.Meter]}
		}
	}
	return found
}

// firstSteps says how to make the first request.
type firstSteps struct {
	HasKey        bool
	Model         string
	BaseURL, Curl string
	Python        string
}

func (c *Console) firstSteps(keys []keyRow) *firstSteps {
	s := &firstSteps{BaseURL: c.settings.Load().PublicURL.JoinPath("v1").String()}
	for _, k := range keys {
		s.HasKey = s.HasKey || k.State == identity.KeyActive
	}
	if models := c.fleet.Models(); len(models) > 0 {
		s.Model = models[0].ID()
	}
	example := createdKey{Secret: "$BASEGATE_KEY", BaseURL: s.BaseURL, Model: s.Model} //nolint:gosec // no secret
	s.Curl = example.Curl()
	s.Python = strings.Join([]string{
		"import os",
		"from openai import OpenAI",
		fmt.Sprintf("client = OpenAI(base_url=%q, api_key=os.environ[%q])", s.BaseURL, "BASEGATE_KEY"),
		fmt.Sprintf("answer = client.completions.create(model=%q, prompt=%q, max_tokens=16)", s.Model, "The capital of France is"),
		"print(answer.choices[0].text)",
	}, "\n")
	return s
}

// modelActivity is how a model has served all accounts in the last 60 minutes.
type modelActivity struct {
	FirstToken      time.Duration // the median, of streams; 0 if there were none
	TokensPerSecond float64       // the median decode speed, of streams; 0 if there were none
}

// modelActivities keeps the decode speeds that were read last, because all dashboards show the same.
type modelActivities struct {
	reading sync.Mutex // held while the speeds are read; taken before mu

	mu     sync.Mutex
	readAt time.Time
	speeds map[string]float64 // tokens a second, by model
}

// speedAge is how old decode speeds may be.
const speedAge = 15 * time.Second

// decodeSpeeds returns the median decode speed of each model in the last 60 minutes. While another request reads the speeds, or
// too many reports run, it returns the last ones.
func (c *Console) decodeSpeeds(ctx context.Context) map[string]float64 {
	m, now := &c.modelStats, c.clock()
	m.mu.Lock()
	last, fresh := m.speeds, now.Sub(m.readAt) < speedAge
	m.mu.Unlock()
	if fresh || !m.reading.TryLock() {
		return last
	}
	defer m.reading.Unlock()
	read, err := c.usages.DecodeSpeeds(ctx, now.Add(-time.Hour))
	if err != nil {
		return last
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readAt, m.speeds = now, read
	return read
}

// modelActivity returns the activity of each model.
func (c *Console) modelActivity(ctx context.Context) map[string]modelActivity {
	byModel, speeds := map[string]modelActivity{}, c.decodeSpeeds(ctx)
	for _, s := range c.history.Totals(time.Hour) {
		if s.Model == "" || s.Backend != "" {
			continue
		}
		a := modelActivity{TokensPerSecond: speeds[s.Model]}
		if median := s.Total.FirstTokenP50; median != nil {
			a.FirstToken = time.Duration(*median * float64(time.Second))
		}
		byModel[s.Model] = a
	}
	return byModel
}

// Median returns the median time to the first token.
func (a modelActivity) Median() string { return formatLatency(a.FirstToken) }

// keyActivity is the recent usage of a key, on its page.
type keyActivity struct {
	Spark *sparkline // nil if it could not be read in time
	Model string     // of the last request; empty if not known
	Last  string     // id of the last request
}

// keyActivity reads the recent usage of a key.
func (c *Console) keyActivity(ctx context.Context, k identity.Key, reader string) (keyActivity, error) {
	var a keyActivity
	found, err := c.activity(ctx, k.AccountID, k.ID)
	if err != nil || found == nil {
		return a, err
	}
	c.draw(found, k.AccountID, []identity.Key{k})
	a.Spark = found.Keys[k.ID]
	filter := usage.Filter{Reader: reader, Account: k.AccountID, Key: k.ID, Limit: 1}
	last, err := c.usages.History(ctx, filter, usage.Recorded, usage.Cursor{}) // of those that were not refused, as the time of the last use
	switch {
	case errors.Is(err, database.ErrReportsBusy), errors.Is(err, database.ErrReportTooLong):
		return a, nil
	case err != nil:
		return a, err
	case len(last.Rows) > 0:
		a.Model, a.Last = last.Rows[0].Model, last.Rows[0].RequestID
	}
	return a, nil
}
