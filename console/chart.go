package console

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"basegate/budget/usage"
)

// chart is a bar chart of a month's tokens per day, stacked by model. Positions and sizes are percentages of the
// drawing, so that it fits every screen and its text keeps its size.
type chart struct {
	Bars   []bar
	Lines  []gridline
	Labels []label
	Series []series
	Days   []dayRow // the same figures as a table
}

// bar is the tokens of one series on one day.
type bar struct {
	X, Y, Width, Height float64
	Series              int // from 1
	Title               string
}

// gridline is a horizontal line with its label.
type gridline struct {
	Y    float64
	Text string
}

// label is a day below the horizontal axis.
type label struct {
	X    float64
	Text string
}

// series is one model, or the sum of the models that have no color of their own.
type series struct {
	Name   string
	Number int // of its color, from 1
	Tokens int64
}

// dayRow is one day with the tokens of each series.
type dayRow struct {
	Day    string
	Tokens []int64
	Total  int64
}

// maxSeries is the number of colors in the style sheet.
const maxSeries = 6

// newChart draws the ledger's rows by day and model.
func newChart(m month, rows []usage.Row) chart {
	c := chart{Series: rank(rows)}
	index := map[string]int{}
	for i, s := range c.Series {
		index[s.Name] = i
	}
	c.Days = make([]dayRow, m.days())
	for i := range c.Days {
		c.Days[i] = dayRow{Day: m.begin.AddDate(0, 0, i).Format("2006-01-02"), Tokens: make([]int64, len(c.Series))}
	}
	for _, r := range rows {
		at, ok := index[r.Model]
		if !ok {
			at = len(c.Series) - 1
		}
		day := &c.Days[r.Time.Day()-1]
		day.Tokens[at] += r.PromptTokens + r.CompletionTokens
		day.Total += r.PromptTokens + r.CompletionTokens
	}
	c.draw()
	return c
}

// rank orders the models by their tokens. If there are more than maxSeries, the last series is the sum of the rest.
func rank(rows []usage.Row) []series {
	tokens := map[string]int64{}
	for _, r := range rows {
		tokens[r.Model] += r.PromptTokens + r.CompletionTokens
	}
	var all []series
	for name, n := range tokens {
		all = append(all, series{Name: name, Tokens: n})
	}
	slices.SortFunc(all, func(a, b series) int {
		return cmp.Or(cmp.Compare(b.Tokens, a.Tokens), cmp.Compare(a.Name, b.Name))
	})
	if len(all) > maxSeries {
		rest := series{Name: "other models"}
		for _, s := range all[maxSeries-1:] {
			rest.Tokens += s.Tokens
		}
		all = append(all[:maxSeries-1], rest)
	}
	for i := range all {
		all[i].Number = i + 1
	}
	return all
}

// draw computes the positions of bars, lines and labels.
func (c *chart) draw() {
	var highest int64
	for _, d := range c.Days {
		highest = max(highest, d.Total)
	}
	top := roundUp(highest)
	for i := range 3 {
		share := float64(i) / 2
		c.Lines = append(c.Lines, gridline{Y: 100 - 100*share, Text: formatShort(int64(share * float64(top)))})
	}
	slot := 100 / float64(len(c.Days))
	for i, d := range c.Days {
		if day := i + 1; day == 1 || day%5 == 0 {
			c.Labels = append(c.Labels, label{X: slot * (float64(i) + .5), Text: strconv.Itoa(day)})
		}
		var below int64
		for at, n := range d.Tokens {
			if n == 0 {
				continue
			}
			below += n
			c.Bars = append(c.Bars, bar{
				X: slot * (float64(i) + .12), Width: slot * .76,
				Y: 100 - 100*float64(below)/float64(top), Height: 100 * float64(n) / float64(top),
				Series: c.Series[at].Number,
				Title:  fmt.Sprintf("%s, %s: %s tokens", d.Day, c.Series[at].Name, formatNumber(n)),
			})
		}
	}
}

// roundUp rounds n up to a number that is round when halved too, since the middle gridline is at half of it.
func roundUp(n int64) int64 {
	if n <= 2 {
		return 2
	}
	unit := math.Pow(10, math.Floor(math.Log10(float64(n))))
	for _, step := range []float64{1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10} {
		if up := int64(math.Round(step * unit)); up >= n {
			return up
		}
	}
	return n
}
