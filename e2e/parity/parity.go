// Package parity compares the responses of a gateway with those of the vLLM servers behind it: it sends each request of a
// matrix to both, plain and streamed, and compares the responses byte for byte.
//
// It replaces only what must differ (id and created), and knows the differences that the HTTP contract documents. The
// tokens that a run can use are reserved against a budget before each request. Reports name the built-in prompts and
// show no text of a prompt or completion. The package shares no code about requests and responses with the gateway, so
// that it cannot repeat a mistake of it; cli finds the addresses and the key.
package parity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Endpoint is a server with the OpenAI API.
type Endpoint struct {
	Name string // in the report
	URL  string // without /v1
	Key  string // bearer token; empty: none
}

// Settings describe a run.
type Settings struct {
	Gateway    Endpoint
	Backends   []Endpoint
	Model      string        // the id that the gateway's clients use
	Checkpoint string        // the name that the backends serve it under
	Budget     int64         // the run uses at most this many tokens
	MaxScored  int64         // max_scored_prompt_tokens of the model; 0: no limit
	Version    string        // of the gateway, for the report
	KeyWait    time.Duration // until the gateway accepts a key that is new
	Transport  http.RoundTripper
	Cases      []Case             // empty: Matrix
	Progress   func(done, of int) // called after each case; may be nil
}

// maxRounds limits how often a case is sent if the responses differ, because a backend may be nondeterministic.
const maxRounds = 3

var (
	errNoBackend = errors.New("no backend of the model answers")
	errGateway   = errors.New("the gateway does not serve the model")
)

// Run sends the matrix and returns the report.
func Run(ctx context.Context, s Settings) (*Report, error) {
	if len(s.Cases) == 0 {
		s.Cases = Matrix()
	}
	r := &runner{settings: s, client: &client{http.Client{Transport: s.Transport}}, report: &Report{
		Model: s.Model, Checkpoint: s.Checkpoint, Gateway: s.Version, Time: time.Now().UTC().Truncate(time.Second), Budget: s.Budget,
	}}
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	for i, c := range s.Cases {
		if err := r.runCase(ctx, c); err != nil {
			return nil, err
		}
		if s.Progress != nil {
			s.Progress(i+1, len(s.Cases))
		}
	}
	r.report.Spent, r.report.Duration = r.spent, time.Since(r.report.Time).Round(time.Second).Seconds()
	return r.report, nil
}

type runner struct {
	settings Settings
	client   *client
	report   *Report
	backends []Endpoint // that answer
	prompts  map[string]prompt
	ids      []int64
	spent    int64
}

// prepare finds the backends that answer and the token ids of the built-in prompt.
func (r *runner) prepare(ctx context.Context) error {
	for _, b := range r.settings.Backends {
		info, err := r.client.inspect(ctx, b, r.settings.Checkpoint)
		if err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("inspect backend %s: %w", b.Name, err)
			}
			info.Problem = err.Error()
		} else {
			r.backends = append(r.backends, b)
		}
		r.report.Backends = append(r.report.Backends, info)
	}
	if len(r.backends) == 0 {
		return fmt.Errorf("%w: %s", errNoBackend, r.report.Backends[0].Problem)
	}
	if err := r.client.checkServed(ctx, r.settings.Gateway, r.settings.Model, r.settings.KeyWait); err != nil {
		return fmt.Errorf("%w: %w", errGateway, err)
	}
	r.ids = r.client.tokenize(ctx, r.backends[0], r.settings.Checkpoint, shortText)
	r.prompts = builtinPrompts(r.ids)
	return nil
}

func (r *runner) runCase(ctx context.Context, c Case) error {
	row := Row{Name: c.Name, Prompt: cmp.Or(c.Prompt, "text")}
	var err error
	if c.Modes != StreamOnly {
		row.Plain, err = r.compare(ctx, newRequest(c, false, r.prompts, r.ids))
	}
	if c.Modes != PlainOnly && err == nil {
		row.Stream, err = r.compare(ctx, newRequest(c, true, r.prompts, r.ids))
	}
	if err != nil {
		return fmt.Errorf("case %q: %w", c.Name, err)
	}
	r.report.Rows = append(r.report.Rows, row)
	return nil
}

// errBudget is returned if the budget does not allow the worst case of another request.
var errBudget = errors.New("the budget does not allow another request")

// send sends a request, after its worst case has been reserved, and replaces the reservation by the tokens used.
func (r *runner) send(ctx context.Context, to Endpoint, body string, worst int64) (*observation, error) {
	if r.spent+worst > r.settings.Budget {
		return nil, errBudget
	}
	r.spent += worst
	o, err := r.client.do(ctx, to, http.MethodPost, "/v1/completions", body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", to.Name, err)
	}
	if total, known := o.usage(); known {
		r.spent -= worst - min(worst, total)
	} else if o.status >= http.StatusBadRequest && o.status < http.StatusInternalServerError {
		r.spent -= worst
	}
	o.normalize()
	return &o, nil
}
