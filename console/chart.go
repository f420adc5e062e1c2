package console

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// chart is a bar chart of tokens by interval, stacked by model or by another group. Positions and sizes are percentages of the
// drawing, so that it fits every screen and its text keeps its size.
type chart struct {
	Bars   []bar
	Lines  []gridline
	Labels []axisLabel
	Series []series
	Days   []dayRow // the intervals: the same figures as a table
}

// bar is the tokens of one series in one interval.
type bar struct {
	X, Y, Width, Height float64
	Series              int // from 1
	Title               string
	URL                 string // of its requests; may be empty
}

type gridline struct {
	Y    float64
	Text string
}

type axisLabel struct {
	X    float64
	Text string
}

// series is one group, or the sum of the groups that have no color of their own.
type series struct {
	Name   string
	Number int // of its color, from 1
	Tokens int64
}

// dayRow is one interval, such as a day, with the tokens of each series.
type dayRow struct {
	Day   string
	Cells []dayCell
	Total int64
}

type dayCell struct {
	Tokens int64
	URL    string // of their requests; may be empty
}

// maxSeries is the number of colors in the style sheet.
const maxSeries = 6

// chartRow is the tokens of a series in an interval.
type chartRow struct {
	start  time.Time // of the interval
	series string
	tokens int64
}

// maxLabels limits the texts below a chart.
const maxLabels = 7

// newChart draws rows by interval and series. layout formats the starts of the intervals in the table, and axis those below the
// chart. link returns the URL of the requests of a series in the interval with a start.
func newChart(rows []chartRow, starts []time.Time, layout, axis string, link func(series string, start time.Time) string) chart {
	if len(rows) == 0 {
		return chart{}
	}
	c := chart{Series: rank(rows)}
	index := map[string]int{}
	for i, s := range c.Series {
		index[s.Name] = i
	}
	slots := map[int64]int{}
	step := (len(starts) + maxLabels - 1) / maxLabels
	for i, at := range starts {
		slots[at.Unix()] = i
		c.Days = append(c.Days, dayRow{Day: at.Format(layout), Cells: make([]dayCell, len(c.Series))})
		if i%step == 0 {
			c.Labels = append(c.Labels, axisLabel{X: 100 * (float64(i) + .5) / float64(len(starts)), Text: at.Format(axis)})
		}
	}
	for _, r := range rows {
		at, ok := index[r.series]
		if !ok {
			at = len(c.Series) - 1
		}
		if slot, ok := slots[r.start.Unix()]; ok {
			c.Days[slot].Cells[at].Tokens += r.tokens
			c.Days[slot].Cells[at].URL = link(c.Series[at].Name, r.start)
			c.Days[slot].Total += r.tokens
		}
	}
	c.draw()
	return c
}

// rank orders the series by their tokens. If there are more than maxSeries, the last one is the sum of the rest.
func rank(rows []chartRow) []series {
	tokens := map[string]int64{}
	for _, r := range rows {
		tokens[r.series] += r.tokens
	}
	var all []series
	for name, n := range tokens {
		all = append(all, series{Name: name, Tokens: n})
	}
	slices.SortFunc(all, func(a, b series) int {
		return cmp.Or(cmp.Compare(b.Tokens, a.Tokens), cmp.Compare(a.Name, b.Name))
	})
	if len(all) > maxSeries {
		rest := series{Name: "others"}
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

// draw computes the positions of bars and lines.
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
		var below int64
		for at, cell := range d.Cells {
			n := cell.Tokens
			if n == 0 {
				continue
			}
			below += n
			c.Bars = append(c.Bars, bar{
				X: slot * (float64(i) + .12), Width: slot * .76,
				Y: 100 - 100*float64(below)/float64(top), Height: 100 * float64(n) / float64(top),
				Series: c.Series[at].Number, URL: cell.URL,
				Title: fmt.Sprintf("%s, %s: %s tokens", d.Day, c.Series[at].Name, formatNumber(n)),
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
