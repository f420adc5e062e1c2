package console

import (
	"maps"
	"net/url"
	"strings"
	"time"
)

// pager links to the other pages of a list, which begins with the newest entry.
type pager struct {
	Newer bool   // this is not the first page
	First string // URL of the first page
	Older string // URL of the next page; empty if there is none
}

// pager returns the links of a page of the list at the request's path. The next page begins at a cursor; empty if there is none.
func (r *request) pager(filter url.Values, next string) pager {
	path := r.Request().URL.Path
	p := pager{Newer: r.query("after") != "", First: withQuery(path, filter)}
	if next != "" {
		q := url.Values{"after": {next}}
		maps.Copy(q, filter)
		p.Older = withQuery(path, q)
	}
	return p
}

func withQuery(path string, q url.Values) string {
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// queryOf returns a query with the values that are not empty.
func queryOf(values map[string]string) url.Values {
	q := url.Values{}
	for name, value := range values {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// days are the days, UTC, or the times of a day, that a list is limited to.
type days struct {
	From, To string    // in the query; empty: no bound
	Times    bool      // they are times of a day
	since    time.Time // zero: no bound
	until    time.Time // exclusive; zero: no bound
}

// days returns the days in the query, or the times, of which the last minute counts. What is neither is no bound.
func (r *request) days() (d days) {
	layout, last := time.DateOnly, 24*time.Hour
	if d.Times = strings.Contains(r.query("from")+r.query("to"), "T"); d.Times {
		layout, last = formTime, time.Minute
	}
	if at, err := time.Parse(layout, r.query("from")); err == nil {
		d.From, d.since = r.query("from"), at
	}
	if at, err := time.Parse(layout, r.query("to")); err == nil {
		d.To, d.until = r.query("to"), at.Add(last)
	}
	return d
}
