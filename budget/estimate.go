package budget

// Estimate is what Reserve would decide about a request if no other one were in flight.
type Estimate struct {
	MaxTokens int64     // of each candidate: the demanded number, or what the caps leave; 0 if they refuse the request
	LimitedBy *Exceeded // the cap that refuses the request or lowers MaxTokens the most; nil if there is none
	Output    int64     // of all candidates with the demanded max_tokens
	Refused   *Exceeded
}

// Estimate returns what would be decided about a request if no other one were in flight. It takes PromptTokens for the
// exact count.
func (b Balance) Estimate(d Demand) Estimate {
	d = d.Normalized()
	decided := decide(b.appendLimits(make([]limit, 0, maxLimits)), &d)
	estimate := Estimate{Output: d.Output(d.MaxTokens)}
	if decided.refusing != nil {
		estimate.Refused = decided.refusing.exceeded(DateOf(b.Time))
		estimate.LimitedBy = estimate.Refused
		return estimate
	}
	estimate.MaxTokens = decided.maxTokens
	if decided.maxTokens < d.MaxTokens {
		estimate.LimitedBy = b.named(func(l *limit) bool { return l.allowed(&d) == decided.maxTokens })
	}
	return estimate
}
