package parity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// comparison collects the responses to one request until a verdict is possible.
type comparison struct {
	request    *request
	documented documented
	edited     bool // the documented request differs from the request

	direct   map[string][]observation // of the backends by name, to the request as it is
	expected map[string][]observation // of the backends, to the documented request, transformed
	gateway  []observation
}

// compare sends a request to the backends and through the gateway, and again while the responses differ.
func (r *runner) compare(ctx context.Context, q *request) (*Result, error) {
	d := document(q, r.haveGuidedFields())
	c := &comparison{
		request: q, documented: d, edited: len(d.remarks) > 0,
		direct: map[string][]observation{}, expected: map[string][]observation{},
	}
	for range maxRounds {
		result, err := r.round(ctx, c)
		if errors.Is(err, errBudget) {
			return &Result{Verdict: Skipped, Remark: err.Error()}, nil
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

// lacksField is the remark of a field that the gateway refuses because of the backends' version.
const lacksField = "the backends' version lacks the field"

// tooLongToScore is the remark of a prompt over max_scored_prompt_tokens, which vLLM does not have.
const tooLongToScore = "the prompt to be scored exceeds max_scored_prompt_tokens"

// mayRefuseScored reports whether the gateway may refuse the request by max_scored_prompt_tokens.
func (r *runner) mayRefuseScored(q *request) bool {
	return r.settings.MaxScored > 0 && q.prompt.maxTokens > r.settings.MaxScored && q.scored()
}

// round sends the request once to each backend and once through the gateway. The result is nil if another round is needed.
func (r *runner) round(ctx context.Context, c *comparison) (*Result, error) {
	q := c.request
	through, err := r.send(ctx, r.settings.Gateway, q.body(r.settings.Model), q.worstCase())
	if err != nil {
		return nil, err
	}
	c.gateway = append(c.gateway, through)
	switch {
	case q.Refused && refuses(through, ""):
		return &Result{Verdict: Documented, Remark: "refused by the gateway: invalid_request"}, nil
	case q.Refused:
		return &Result{Verdict: Different, Remark: "the gateway must refuse it with 400 invalid_request" + describeCode(through)}, nil
	case q.MayRefuse != "" && refuses(through, q.MayRefuse):
		return &Result{Verdict: Documented, Remark: "refused by the gateway: " + lacksField}, nil
	case r.mayRefuseScored(q) && refuses(through, "prompt"):
		return &Result{Verdict: Documented, Remark: "refused by the gateway: " + tooLongToScore}, nil
	}
	if !q.unboundedAsWritten() {
		if err := r.sendDirect(ctx, c.direct, q.body(r.settings.Checkpoint), q, nil); err != nil {
			return nil, err
		}
	}
	if result := c.match(); result != nil || !c.edited {
		return result, nil
	}
	body := q.bodyWith(r.settings.Checkpoint, c.documented.members)
	if err := r.sendDirect(ctx, c.expected, body, q, c.documented.transform); err != nil {
		return nil, err
	}
	return c.match(), nil
}

// sendDirect sends a body to each backend and collects the responses, transformed if they are no errors.
func (r *runner) sendDirect(
	ctx context.Context, into map[string][]observation, body string, q *request, transform []func(*observation),
) error {
	for _, b := range r.backends {
		o, err := r.send(ctx, b, body, q.worstCase())
		if err != nil {
			return err
		}
		for _, apply := range transform {
			if !o.failed() {
				apply(&o)
			}
		}
		into[b.Name] = append(into[b.Name], o)
	}
	return nil
}

// match returns the verdict if one of the gateway's responses is that of a backend, or its documented form.
func (c *comparison) match() *Result {
	through := c.gateway[len(c.gateway)-1]
	for _, o := range flatten(c.direct) {
		if !through.failed() && equal(o, through) {
			return &Result{Verdict: Identical}
		}
	}
	for _, o := range flatten(c.expected) {
		if !through.failed() && equal(o, through) {
			return &Result{Verdict: Documented, Remark: strings.Join(c.documented.remarks, "; ")}
		}
	}
	for _, o := range slices.Concat(flatten(c.expected), flatten(c.direct)) {
		if !through.failed() || !o.failed() {
			continue
		}
		if remark, ok := acceptsError(o, through); ok {
			return &Result{Verdict: Documented, Remark: remark}
		}
	}
	return nil
}

// failure returns the verdict on responses that never matched.
func (c *comparison) failure() *Result {
	reference := c.direct
	if c.edited {
		reference = c.expected
	}
	q, through := c.request, c.gateway[len(c.gateway)-1]
	direct := flatten(reference)
	if varies(reference) && q.stream && slices.ContainsFunc(direct, func(o observation) bool {
		return !o.failed() && !through.failed() && o.complete() == through.complete() && o.merge() == through.merge()
	}) {
		return &Result{Verdict: Nondeterministic, Remark: "the backend splits the same tokens into events differently each time"}
	}
	if varies(reference) && slices.ContainsFunc(direct, func(o observation) bool {
		return o.failed() == through.failed() && slices.Equal(shape(o), shape(through))
	}) {
		return &Result{Verdict: Nondeterministic, Remark: "the backend's own responses differ; all members are present"}
	}
	if through.failed() && direct[0].failed() {
		remark, _ := acceptsError(direct[0], through)
		return &Result{Verdict: Different, Remark: remark}
	}
	return &Result{Verdict: Different, Remark: difference(direct[0], through)}
}

// varies reports whether a backend has sent different responses to the same request.
func varies(responses map[string][]observation) bool {
	for _, list := range responses {
		for _, o := range list[1:] {
			if !equal(list[0], o) {
				return true
			}
		}
	}
	return false
}

func flatten(responses map[string][]observation) (all []observation) {
	for _, list := range responses {
		all = append(all, list...)
	}
	return all
}
