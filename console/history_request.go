package console

import (
	"cmp"
	"errors"
	"time"

	"basegate/budget/usage"
	"basegate/identity"
)

// requestPage is the data of the page of one request.
type requestPage struct {
	requestRow
	KeyPrefix string
	Phases    []phase
	Attempts  []attemptRow
	Speed     float64 // completion tokens a second after the first one; 0 if not known
	Boot      time.Duration
	ChainID   string
}

// phase is a part of a request's time. Positions and sizes are percentages of the whole.
type phase struct {
	Name     string
	Number   int // of its color
	Took     time.Duration
	X, Width float64
}

// Duration returns how long the phase took.
func (p phase) Duration() string { return formatLatency(p.Took) }

// attemptRow is one attempt at a backend.
type attemptRow struct {
	usage.Attempt
	X, Width float64 // percentages of the request's time
}

// Failed reports whether the attempt brought no response, or only a part.
func (a attemptRow) Failed() bool { return a.Class != "success" }

// Began returns when the attempt began after the request's arrival.
func (a attemptRow) Began() string { return formatLatency(a.Start) }

// Lasted returns how long the attempt took.
func (a attemptRow) Lasted() string { return formatLatency(a.Took) }

func (c *Console) requestPage(r *request) error {
	account := r.account.ID
	if r.account.Admin {
		account = "" // an administrator may see the requests of all
	}
	d, found, err := c.usages.Request(r.ctx(), account, r.param("id"))
	if err != nil {
		return err
	}
	if !found {
		return errNotFound
	}
	page := requestPage{requestRow: requestRow{Row: d.Row, KeyName: d.KeyID}, Boot: d.Boot, ChainID: d.ChainID}
	k, err := c.keyOf(r, d.AccountID, d.KeyID)
	if err != nil {
		return err
	}
	page.KeyName, page.KeyPrefix = cmp.Or(k.Name, d.KeyID), k.Prefix
	page.Phases = phases(&d)
	for _, a := range d.Attempts {
		x := part(a.Start, d.Total)
		page.Attempts = append(page.Attempts, attemptRow{a, x, min(part(a.Took, d.Total), 100-x)})
	}
	if streaming := d.Total - d.FirstToken; d.FirstToken > 0 && d.CompletionTokens > 1 && streaming > 0 {
		page.Speed = float64(d.CompletionTokens-1) / streaming.Seconds()
	}
	return c.render(r, "request", "Request", page)
}

// keyOf returns a key of an account; zero if the account has none with this id.
func (c *Console) keyOf(r *request, account, id string) (identity.Key, error) {
	k, err := c.keys.Get(r.ctx(), id)
	if errors.Is(err, identity.ErrNoKey) || err == nil && k.AccountID != account {
		return identity.Key{}, nil
	}
	return k, err
}

// phases divides the time of a request: the wait for the model's boot, the wait in the queue, the time until the first
// token, and the stream; or the whole response, if it was no stream.
func phases(d *usage.Detail) []phase {
	var all []phase
	left, x := d.Total, 0.0
	add := func(name string, number int, took time.Duration) {
		took = min(took, left)
		if took <= 0 {
			return
		}
		left -= took
		p := phase{Name: name, Number: number, Took: took, X: x, Width: part(took, d.Total)}
		x += p.Width
		all = append(all, p)
	}
	add("Boot", 5, d.Boot)
	add("Queue", 2, d.Queue)
	switch {
	case d.State == usage.Refused:
		add("Checks", 6, left)
	case d.FirstToken > 0:
		add("To the first token", 4, d.FirstToken-(d.Total-left))
		add("Stream", 1, left)
	default:
		add("Response", 1, left)
	}
	return all
}

// part returns a duration as a percentage of another.
func part(d, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return min(100, 100*float64(d)/float64(whole))
}
