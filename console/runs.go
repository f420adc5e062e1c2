package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/budget/usage/report"
	"basegate/identity"
)

type runRow struct {
	*report.Run
	Gauge    gauge     // tokens, of the lifetime budgets of its keys together
	Rate     int64     // tokens an hour, of late
	UsedUpAt time.Time // at that rate; zero: not foreseen
	Forecast string    // what is known of the end of the budget; empty without one
	Path     string    // of its page
	Email    string    // of the account, for administrators
}

// Running reports whether the run can be stopped.
func (r *runRow) Running() bool { return r.State() == report.Running }

// Stopped reports whether the run can be resumed.
func (r *runRow) Stopped() bool { return r.State() == report.Stopped }

// recentTokens are the tokens that runs have used since a time.
type recentTokens struct {
	since time.Time
	of    map[[2]string]int64 // by account and name
}

// rateWindow is how far back the tokens of a rate are counted, and a part of an hour more: usage is summed up by hours.
const rateWindow = 2 * time.Hour

func (c *Console) recentTokens(r *request, filter usage.Filter) (recentTokens, error) {
	filter.Since = c.clock().Add(-rateWindow).UTC().Truncate(time.Hour)
	rows, err := c.Usage.Groups(r.ctx(), filter, usage.ByRun)
	recent := recentTokens{filter.Since, map[[2]string]int64{}}
	if err == nil {
		for _, row := range rows[0] {
			recent.of[[2]string{row.AccountID, row.Run}] = row.Tokens()
		}
	}
	return recent, err
}

func (c *Console) newRunRow(r *request, run *report.Run, used recentTokens) runRow {
	row, now := runRow{Run: run, Gauge: newGauge(run.Tokens(), run.Budget()), Path: "/usage/runs/" + run.Name}, c.clock()
	if r.isAdministration() {
		row.Path = "/admin/runs/" + url.PathEscape(run.AccountID) + "/" + run.Name
	}
	since, recent := used.since, int64(0)
	if row.Running() {
		recent = used.of[[2]string{run.AccountID, run.Name}]
	}
	if begun := run.Begun(now); since.Before(begun) {
		since = begun
	}
	row.Rate = int64(float64(recent) / max(now.Sub(since), time.Minute).Hours())
	row.Forecast, row.UsedUpAt = forecastEnd(row.Gauge, recent, since, now)
	return row
}

// runsAccount returns the account whose runs a request is about: the user's own, or below /admin that of the path, all if it is empty.
func (r *request) runsAccount() string {
	if r.isAdministration() {
		return r.param("account")
	}
	return r.account.ID
}

// maxRunsShown limits a list that only grows.
const maxRunsShown = 200

// runsPage is the data of the page of runs: of an account, or of all for administrators.
type runsPage struct {
	All  bool // of all accounts
	Rows []runRow
	More int // runs that are not shown
}

// runsPage shows the runs of the user's account, or of all accounts below /admin, the newest first.
func (c *Console) runsPage(r *request) error {
	page := runsPage{All: r.isAdministration()}
	account := r.runsAccount()
	keys, err := c.Keys.Run(r.ctx(), account, "")
	if err != nil {
		return err
	}
	filter := usage.Filter{Reader: r.account.ID, Account: account}
	used, err := c.Usage.Groups(r.ctx(), filter, usage.ByRun)
	if err != nil {
		return err
	}
	recent, err := c.recentTokens(r, filter)
	if err != nil {
		return err
	}
	known := c.names(r)
	runs := report.Runs(keys, used[0])
	page.More = max(0, len(runs)-maxRunsShown)
	for _, run := range runs[:len(runs)-page.More] {
		row := c.newRunRow(r, run, recent)
		row.Email = known.Account(run.AccountID)
		page.Rows = append(page.Rows, row)
	}
	return c.render(r, "runs", "Runs", page)
}

type runPage struct {
	runRow
	All      bool // it is the page of an administrator
	Curve    curve
	Total    share
	Models   []share
	ByKey    []runKey
	KeysPath string   // before the id of a key in the path of its page
	Problem  *problem // why Raise was refused
	Raise    string   // as entered
}

// runKey is a key of a run, or one whose requests name the run.
type runKey struct {
	identity.Key
	Label bool // it is not part of the run
	Gauge gauge
}

func (c *Console) runPage(r *request) error { return c.showRun(r, http.StatusOK, nil) }

// showRun shows a run, with a problem of the form that raises its budgets.
func (c *Console) showRun(r *request, status int, p *problem) error {
	name, account := r.param("run"), r.runsAccount()
	keys, err := c.Keys.Run(r.ctx(), account, name)
	if err != nil {
		return err
	}
	filter := usage.Filter{Reader: r.account.ID, Account: account, Run: name}
	groups, err := c.Usage.Groups(r.ctx(), filter, usage.ByRun, usage.ByModel, usage.ByKey)
	if err != nil {
		return err
	}
	runs := report.Runs(keys, groups[0])
	if len(runs) != 1 || identity.CheckRun(name) != nil {
		return errNotFound
	}
	recent, err := c.recentTokens(r, filter)
	if err != nil {
		return err
	}
	page := runPage{
		runRow: c.newRunRow(r, runs[0], recent), All: r.isAdministration(), Total: share{Row: runs[0].Usage}, KeysPath: "/keys/", Problem: p,
		Raise: r.field("tokens"),
	}
	for _, row := range groups[1] {
		page.Models = append(page.Models, share{Row: row, Name: row.Model})
	}
	known := c.names(r)
	page.ByKey = runKeys(keys, groups[2], known)
	if err := c.drawRun(r, &page, filter); err != nil {
		return err
	}
	if page.All {
		page.KeysPath = "/admin/keys/"
	}
	page.Email = known.Account(account)
	return c.renderStatus(r, status, "run", "Run "+name, &page)
}

// runKeys returns the keys of a run, the newest first, with what they have used of their budgets, and then the keys whose requests
// name it.
func runKeys(keys []identity.Key, used []usage.Row, known names) (all []runKey) {
	for _, k := range slices.Backward(keys) {
		row := usage.Row{}
		if at := slices.IndexFunc(used, func(u usage.Row) bool { return u.KeyID == k.ID }); at >= 0 {
			row = used[at]
		}
		all = append(all, runKey{Key: k, Gauge: newGauge(row.Tokens(), k.Caps[quota.LifeTotal])})
	}
	for _, row := range used {
		if slices.ContainsFunc(keys, func(k identity.Key) bool { return k.ID == row.KeyID }) {
			continue
		}
		p, _ := known.Keys(row.KeyID)
		all = append(all, runKey{
			Key:   identity.Key{ID: row.KeyID, Name: cmp.Or(p.KeyName, row.KeyID), Prefix: p.KeyPrefix},
			Label: true, Gauge: newGauge(row.Tokens(), quota.Unbounded()),
		})
	}
	return all
}

// curve is the tokens of a run over time, as a line in a drawing of 100 by 100.
type curve struct {
	Points string // of the line; empty if nothing was used
	Budget float64
	Lines  []gridline
	Labels []axisLabel
	Rows   []curveRow // the same figures as a table
}

// curveRow is the end of an hour or a day, with the tokens used until then.
type curveRow struct {
	Until time.Time
	Sum   int64
}

// maxCurveHours is the length of a curve from which its hours are days.
const maxCurveHours = 14 * 24

func (c *Console) drawRun(r *request, page *runPage, filter usage.Filter) error {
	now := c.clock().UTC()
	begun := page.Begun(now)
	interval, width := usage.ByHour, time.Hour
	if now.Sub(begun) > maxCurveHours*time.Hour {
		interval, width = usage.ByDay, 24*time.Hour
	}
	filter.Since = begun.Truncate(width)
	groups, err := c.Usage.Groups(r.ctx(), filter, interval)
	if err != nil {
		return err
	}
	rows := slices.Backward(groups[0]) // the oldest first
	var sum int64
	for _, row := range rows {
		sum += row.Tokens()
		page.Curve.Rows = append(page.Curve.Rows, curveRow{earlier(row.Time.Add(width), now), sum})
	}
	page.Curve.draw(begun, now, page.Gauge)
	return nil
}

// draw computes the line: from nothing at the beginning, flat while nothing is used.
func (c *curve) draw(begun, now time.Time, g gauge) {
	if len(c.Rows) == 0 || !now.After(begun) {
		return
	}
	total := c.Rows[len(c.Rows)-1].Sum
	top := roundUp(max(total, g.Limit))
	x := func(at time.Time) float64 { return 100 * at.Sub(begun).Seconds() / now.Sub(begun).Seconds() }
	y := func(n int64) float64 { return 100 - 100*float64(n)/float64(top) }
	var line strings.Builder
	last, before := begun, int64(0)
	for _, row := range c.Rows {
		if gap := row.Until.Add(-time.Hour); gap.After(last) { // nothing was used in between
			fmt.Fprintf(&line, "%.2f,%.2f ", x(gap), y(before))
		}
		if line.Len() == 0 {
			fmt.Fprintf(&line, "0,100 ")
		}
		fmt.Fprintf(&line, "%.2f,%.2f ", x(row.Until), y(row.Sum))
		last, before = row.Until, row.Sum
	}
	fmt.Fprintf(&line, "100,%.2f", y(total))
	c.Points, c.Budget = line.String(), -1
	if g.Bounded {
		c.Budget = y(g.Limit)
	}
	for i := range 3 {
		n := int64(float64(i) / 2 * float64(top))
		c.Lines = append(c.Lines, gridline{Y: y(n), Text: formatShort(n)})
	}
	layout := "2 Jan"
	if now.Sub(begun) < 48*time.Hour {
		layout = "15:04"
	}
	for _, part := range []float64{0, .5, 1} {
		at := begun.Add(time.Duration(part * float64(now.Sub(begun))))
		c.Labels = append(c.Labels, axisLabel{X: 100 * part, Text: at.Format(layout)})
	}
}

// forecastEnd says what is left of a budget, and when it will be used up at the rate of the tokens used since a time; zero is never,
// or not within years.
func forecastEnd(g gauge, recent int64, since, now time.Time) (text string, usedUpAt time.Time) {
	left := g.Limit - g.Used
	switch {
	case !g.Bounded:
		return "", time.Time{}
	case left <= 0:
		return "The budget is used up.", time.Time{}
	}
	text = formatNumber(left) + " tokens are left."
	seconds := float64(left) * now.Sub(since).Seconds() / float64(recent)
	if recent == 0 || seconds > (10*365*24*time.Hour).Seconds() {
		return text, time.Time{}
	}
	return text, now.Add(time.Duration(seconds * float64(time.Second))).Truncate(time.Minute)
}

func (c *Console) changeRun(r *request) error {
	name, account := r.param("run"), r.runsAccount()
	var err error
	var done string
	switch r.param("action") {
	case "stop":
		done = "stopped"
		_, err = c.Keys.StopRun(r.ctx(), account, name)
	case "resume":
		done = "resumed"
		_, err = c.Keys.ResumeRun(r.ctx(), account, name)
	case "raise":
		done = "raised"
		more, ok := parseCap(r.field("tokens"))
		tokens, bounded := more.Tokens()
		if !ok || !bounded || tokens == 0 {
			return c.showRun(r, http.StatusUnprocessableEntity, invalid("Enter a number of tokens such as 500000, 500k or 1.5M.").on("tokens"))
		}
		_, err = c.Keys.RaiseRun(r.ctx(), account, name, tokens)
	default:
		return errNotFound
	}
	if errors.Is(err, identity.ErrNoRun) {
		return errNotFound
	}
	if p, ok := formProblem(err); ok {
		return c.showRun(r, p.status, p)
	}
	return c.redirectDone(r, err, strings.TrimSuffix(r.Request().URL.Path, "/"+r.param("action")), "Run "+name+" "+done+".")
}
