package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"basegate/budget/usage"
	apierr "basegate/errors"
)

// usageGroupings are the values of the parameter by. The first is the default.
var usageGroupings = []string{string(usage.ByDay), string(usage.ByModel), string(usage.ByUser), string(usage.ByWorkload), string(usage.ByRun)}

// maxUsageRows limits the rows of a response. User tags are free, so there may be very many.
const maxUsageRows = 10_000

type usageList struct {
	Object  string        `json:"object"`
	Data    []usageObject `json:"data"`
	HasMore bool          `json:"has_more"` // more than maxUsageRows; the first are listed
}

// usageObject is one row. Of the first five fields, only that of the grouping is present.
type usageObject struct {
	Day              *string `json:"day,omitzero"`
	Model            *string `json:"model,omitzero"`
	User             *string `json:"user,omitzero"`
	Workload         *string `json:"workload,omitzero"`
	Run              *string `json:"run,omitzero"`
	Requests         int64   `json:"requests"`
	PromptTokens     int64   `json:"prompt_tokens"`
	CompletionTokens int64   `json:"completion_tokens"`
	TotalTokens      int64   `json:"total_tokens"`
	SavedTokens      int64   `json:"saved_tokens,omitzero"` // by replays
	CachedTokens     *int64  `json:"cached_tokens"`         // null: no backend has reported them
	CacheKnownTokens int64   `json:"cache_known_tokens"`    // prompt tokens of the requests whose backend has
}

func (s *Server) showUsage(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	filter, by, err := parseUsageQuery(x.r)
	if err != nil {
		return err
	}
	key := x.caller.identity.KeyID
	filter.Reader, filter.Key, filter.Account, filter.Limit = key, key, x.caller.identity.AccountID, maxUsageRows+1
	rows, err := s.deps.Usage.List(x.r.Context(), filter, usage.Grouping(by))
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
		TotalTokens: r.Tokens(), SavedTokens: r.SavedTokens,
		CachedTokens: r.Cached(), CacheKnownTokens: r.KnownTokens,
	}
	switch usage.Grouping(by) {
	case usage.ByModel:
		o.Model = &r.Model
	case usage.ByUser:
		o.User = &r.User
	case usage.ByWorkload:
		o.Workload = &r.Workload
	case usage.ByRun:
		o.Run = &r.Run
	default:
		day := r.Time.UTC().Format(time.DateOnly)
		o.Day = &day
	}
	return o
}

// Query returns the parameters of a request's URL. Each may stand once and must be one of known: like a field of a body, an
// unknown one is an error.
func Query(r *http.Request, known ...string) (map[string]string, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, apierr.InvalidField("", "the query of the URL is malformed: names and values must be percent-encoded")
	}
	single := make(map[string]string, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) { // the first of several errors must not be random
		switch all := values[name]; {
		case !slices.Contains(known, name):
			return nil, apierr.InvalidField(name, fmt.Sprintf("unknown parameter %q: there are %s",
				apierr.Clip(name), cmp.Or(strings.Join(known, ", "), "none here")))
		case len(all) > 1:
			return nil, apierr.InvalidField(name, fmt.Sprintf("%s: got it %d times; expected it once", name, len(all)))
		default:
			single[name] = all[0]
		}
	}
	return single, nil
}

func parseUsageQuery(r *http.Request) (f usage.Filter, by string, err error) {
	q, err := Query(r, "since", "until", "by")
	if err != nil {
		return f, by, err
	}
	if f.Since, err = parseUsageTime(q, "since", false); err != nil {
		return f, by, err
	}
	if f.Until, err = parseUsageTime(q, "until", true); err != nil {
		return f, by, err
	}
	by, given := q["by"]
	switch {
	case !given:
		by = usageGroupings[0]
	case !slices.Contains(usageGroupings, by):
		return f, by, apierr.InvalidField("by", fmt.Sprintf("by is one of %s, got %q", strings.Join(usageGroupings, ", "), apierr.Clip(by)))
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return f, by, apierr.InvalidField("until", "until is not after since, so there is no time between them")
	}
	return f, by, nil
}

// parseUsageTime parses a parameter, if there is one: a day in UTC, which means its start or its end, or a time.
func parseUsageTime(q map[string]string, name string, endOfDay bool) (time.Time, error) {
	text, given := q[name]
	if !given {
		return time.Time{}, nil
	}
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
