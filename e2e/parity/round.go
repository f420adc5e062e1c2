package parity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// responses are those of the backends, by name, to the same request.
type responses map[string][]*observation

// comparison collects the responses to one request until a verdict is possible.
type comparison struct {
	request    *request
	documented documented

	direct   responses // to the request as it is
	expected responses // to the documented request, transformed
	through  *observation
}

// edited reports whether the response may be other than that to the request as it is.
func (c *comparison) edited() bool { return len(c.documented.remarks) > 0 }

// compare sends a request to the backends and through the gateway, and again while the responses differ.
func (r *runner) compare(ctx context.Context, q *request) (*Result, error) {
	c := &comparison{request: q, documented: document(q, r.haveGuidedFields()), direct: responses{}, expected: responses{}}
	for range maxRounds {
		result, err := r.round(ctx, c)
		if errors.Is(err, errBudget) {
			return &Result{Skipped, err.Error()}, nil
		}
		if err != nil || result != nil {
			return result, err
		}
	}
	return c.failure(), nil
}

// haveGuidedFields reports whether the backends are of versions before 0.11, whose structured output has other fields.
func (r *runner) haveGuidedFields() bool {
	return !slices.ContainsFunc(r.report.Backends, func(b Backend) bool {
		var major, minor int
		n, err := fmt.Sscanf(b.Version, "%d.%d", &major, &minor)
		return err != nil || n != 2 || major > 0 || minor >= 11
	})
}

// mayRefuseScored reports whether the gateway may refuse the request by max_scored_prompt_tokens.
func (r *runner) mayRefuseScored(q *request) bool {
	return r.settings.MaxScored > 0 && q.prompt.maxTokens > r.settings.MaxScored && q.scored()
}

// round sends the request once to each backend and once through the gateway. The result is nil if another round is needed.
func (r *runner) round(ctx context.Context, c *comparison) (result *Result, err error) {
	q := c.request
	if c.through, err = r.send(ctx, r.settings.Gateway, q.body(r.settings.Model, q.members), q.worstCase()); err != nil {
		return nil, err
	}
	switch {
	case q.Refused && refuses(c.through, ""):
		return &Result{Documented, "refused by the gateway: invalid_request"}, nil
	case q.Refused:
		return &Result{Different, "the gateway must refuse it with 400 invalid_request" + describeCode(c.through)}, nil
	case q.MayRefuse != "" && refuses(c.through, q.MayRefuse):
		return &Result{Documented, "refused by the gateway: the backends' version lacks the field"}, nil
	case r.mayRefuseScored(q) && refuses(c.through, "prompt"):
		return &Result{Documented, "refused by the gateway: the prompt to be scored exceeds max_scored_prompt_tokens"}, nil
	}
	if !q.unboundedAsWritten() {
		if err := r.sendDirect(ctx, c.direct, q, q.members, nil); err != nil {
			return nil, err
		}
	}
	if result := c.match(); result != nil || !c.edited() {
		return result, nil
	}
	if err := r.sendDirect(ctx, c.expected, q, c.documented.members(q.asJSON), c.documented.transform); err != nil {
		return nil, err
	}
	return c.match(), nil
}

// sendDirect sends a request to each backend and collects the responses, transformed if they are no errors.
func (r *runner) sendDirect(ctx context.Context, into responses, q *request, members string, transform []func(*observation)) error {
	for _, b := range r.backends {
		o, err := r.send(ctx, b, q.body(r.settings.Checkpoint, members), q.worstCase())
		if err != nil {
			return err
		}
		for _, apply := range transform {
			if !o.failed() {
				apply(o)
			}
		}
		into[b.Name] = append(into[b.Name], o)
	}
	return nil
}

// match returns the verdict if the gateway's response is that of a backend, or its documented form.
func (c *comparison) match() *Result {
	direct, expected := c.direct.all(), c.expected.all()
	if !c.through.failed() {
		same := func(o *observation) bool { return equal(o, c.through) }
		switch {
		case slices.ContainsFunc(direct, same):
			return &Result{Identical, ""}
		case slices.ContainsFunc(expected, same):
			return &Result{Documented, strings.Join(c.documented.remarks, "; ")}
		}
		return nil
	}
	for _, o := range append(expected, direct...) {
		if !o.failed() {
			continue
		}
		if remark, ok := acceptsError(o, c.through); ok {
			return &Result{Documented, remark}
		}
	}
	return nil
}

// failure returns the verdict on responses that never matched.
func (c *comparison) failure() *Result {
	reference := c.direct
	if c.edited() {
		reference = c.expected
	}
	direct := reference.all()
	if reference.vary() {
		for _, o := range direct {
			if o.failed() == c.through.failed() && maps.Equal(o.shape(), c.through.shape()) {
				return &Result{Nondeterministic, "the backend's own responses differ; all members are present"}
			}
		}
	}
	if c.through.failed() && direct[0].failed() {
		remark, _ := acceptsError(direct[0], c.through)
		return &Result{Different, remark}
	}
	return &Result{Different, difference(direct[0], c.through)}
}

func (r responses) vary() bool {
	for _, list := range r {
		if slices.ContainsFunc(list, func(o *observation) bool { return !equal(list[0], o) }) {
			return true
		}
	}
	return false
}

func (r responses) all() []*observation {
	return slices.Concat(slices.Collect(maps.Values(r))...)
}
