package proxy

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"basegate/budget/usage"
	apierr "basegate/errors"
)

// usageGroupings are the values of the parameter by. The first is the default.
var usageGroupings = []string{string(usage.ByDay), string(usage.ByModel), string(usage.ByUser), string(usage.ByWorkload)}

// maxUsageRows limits the rows of a response. User tags are free, so there may be very many.
const maxUsageRows = 10_000

type usageList struct {
	Object  string        `json:"object"`
	Data    []usageObject `json:"data"`
	HasMore bool          `json:"has_more"` // more than maxUsageRows; the first are listed
}

// usageObject is one row. Of the first four fields, only that of the grouping is present.
type usageObject struct {
	Day              *string `json:"day,omitzero"`
	Model            *string `json:"model,omitzero"`
	User             *string `json:"user,omitzero"`
	Workload         *string `json:"workload,omitzero"`
	Requests         int64   `json:"requests"`
	PromptTokens     int64   `json:"prompt_tokens"`
	CompletionTokens int64   `json:"completion_tokens"`
	TotalTokens      int64   `json:"total_tokens"`
}

// showUsage serves GET /v1/usage, the usage of the key of the request.
func (s *Server) showUsage(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	filter, by, err := parseUsageQuery(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	key := x.caller.identity.KeyID
	filter.Reader, filter.Key, filter.Account, filter.Limit = key, key, x.caller.identity.AccountID, maxUsageRows+1
	rows, err := s.usage.List(x.r.Context(), filter, usage.Grouping(by))
	switch {
	case err != nil && x.cancelled():
		return x.cancelErr()
	case err != nil:
		return apierr.Overload(apierr.NoDatabase, "the ledger cannot be read at the moment", ledgerRetry, err)
	}
	list := usageList{Object: "list", Data: []usageObject{}, HasMore: len(rows) > maxUsageRows}
	for _, r := range rows[:min(len(rows), maxUsageRows)] {
		list.Data = append(list.Data, newUsageObject(by, &r))
	}
	return s.sendJSON(x, list)
}

func newUsageObject(by string, r *usage.Row) usageObject {
	o := usageObject{
		Requests: r.Requests, PromptTokens: r.PromptTokens, CompletionTokens: r.CompletionTokens,
		TotalTokens: r.PromptTokens + r.CompletionTokens,
	}
	switch usage.Grouping(by) {
	case usage.ByModel:
		o.Model = &r.Model
	case usage.ByUser:
		o.User = &r.User
	case usage.ByWorkload:
		o.Workload = &r.Workload
	default:
		day := r.Time.UTC().Format(time.DateOnly)
		o.Day = &day
	}
	return o
}

// parseUsageQuery parses the parameters since, until and by. Like a field of a body, an unknown one is an error.
func parseUsageQuery(raw string) (f usage.Filter, by string, err error) {
	by = usageGroupings[0]
	parameters, err := url.ParseQuery(raw)
	if err != nil {
		return f, by, apierr.InvalidField("", "the query of the URL is not well-formed")
	}
	names := make([]string, 0, len(parameters))
	for name := range parameters {
		names = append(names, name)
	}
	slices.Sort(names) // the first of several errors must not be random
	for _, name := range names {
		values := parameters[name]
		if len(values) > 1 {
			return f, by, apierr.InvalidField(name, fmt.Sprintf("the parameter %q occurs %d times", apierr.Clip(name), len(values)))
		}
		switch name {
		case "since":
			f.Since, err = parseUsageTime(name, values[0], false)
		case "until":
			f.Until, err = parseUsageTime(name, values[0], true)
		case "by":
			if by = values[0]; !slices.Contains(usageGroupings, by) {
				err = apierr.InvalidField(name, fmt.Sprintf("by is one of %s, got %q", strings.Join(usageGroupings, ", "), apierr.Clip(by)))
			}
		default:
			err = apierr.InvalidField(name, fmt.Sprintf("unknown parameter %q: there are since, until and by", apierr.Clip(name)))
		}
		if err != nil {
			return f, by, err
		}
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return f, by, apierr.InvalidField("until", "until is not after since, so there is no time between them")
	}
	return f, by, nil
}

// parseUsageTime parses a day in UTC, which means its start or its end, or a time.
func parseUsageTime(name, text string, endOfDay bool) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.UTC(), nil
	}
	day, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return time.Time{}, apierr.InvalidField(name, fmt.Sprintf(
			"%s is a day such as 2026-11-21 or a time such as 2026-11-21T09:30:00Z, got %q", name, apierr.Clip(text)))
	}
	if endOfDay {
		day = day.AddDate(0, 0, 1)
	}
	return day, nil
}
