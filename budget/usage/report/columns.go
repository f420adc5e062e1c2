package report

import (
	"slices"
	"time"

	"basegate/budget/usage"
)

// Columns are the columns of a report, in their order.
type Columns []column

type column struct {
	name          string
	value         func(Names, *usage.Row) any // a string, bool, int, int64, float64 or time.Time
	summed        bool                        // the values are int64, and a table ends with their sum
	omitFromTable bool                        // so that the table fits a terminal
	jsonOnly      bool                        // only JSON has it, and no member for nil and an empty string
}

var (
	requestIDColumn  = field("request_id", func(r *usage.Row) any { return r.RequestID })
	timeColumn       = field("time", func(r *usage.Row) any { return r.Time })
	dayColumn        = field("day", func(r *usage.Row) any { return r.Time.Format(time.DateOnly) })
	hourColumn       = field("hour", func(r *usage.Row) any { return r.Time })
	keyColumn        = column{name: "key", value: func(n Names, r *usage.Row) any { return n.keyPrefix(r.KeyID) }}
	nameColumn       = column{name: "name", value: func(n Names, r *usage.Row) any { return n.keyName(r.KeyID) }}
	keyNameColumn    = column{name: "key_name", value: nameColumn.value}
	accountColumn    = column{name: "account", value: func(n Names, r *usage.Row) any { return n.Account(r.AccountID) }}
	modelColumn      = field("model", func(r *usage.Row) any { return r.Model })
	backendColumn    = field("backend", func(r *usage.Row) any { return r.Backend })
	endpointColumn   = field("endpoint", func(r *usage.Row) any { return r.Endpoint })
	workloadColumn   = field("workload", func(r *usage.Row) any { return r.Workload })
	userColumn       = field("user", func(r *usage.Row) any { return r.User })
	runColumn        = field("run", func(r *usage.Row) any { return r.Run })
	ofRunColumn      = column{name: "run", value: runColumn.value, jsonOnly: true}
	streamColumn     = field("stream", func(r *usage.Row) any { return r.Stream })
	statusColumn     = field("status", func(r *usage.Row) any { return r.Status })
	codeColumn       = field("code", func(r *usage.Row) any { return r.Code })
	stateColumn      = field("state", func(r *usage.Row) any { return string(r.State) })
	queueColumn      = field("queue_ms", func(r *usage.Row) any { return milliseconds(r.Queue) })
	firstTokenColumn = field("first_token_ms", func(r *usage.Row) any { return milliseconds(r.FirstToken) })
	totalTimeColumn  = field("total_ms", func(r *usage.Row) any { return milliseconds(r.Total) })
	chainIDColumn    = column{name: "chain_id", value: func(_ Names, r *usage.Row) any { return r.ChainID }, jsonOnly: true}

	savedColumn    = reported("saved_tokens", false, (*usage.Row).Saved)
	cachedColumn   = reported("cached_tokens", false, (*usage.Row).Cached)
	knownColumn    = reported("cache_known_tokens", false, (*usage.Row).Known)
	reportsColumns = Columns{
		cachedColumn,
		reported("created_cache_tokens", false, func(r *usage.Row) *int64 { return r.Reported.CreatedTokens }),
		reported("engine_queue_ms", true, func(r *usage.Row) *int64 { return r.Reported.Queue }),
		reported("engine_prefill_ms", true, func(r *usage.Row) *int64 { return r.Reported.Prefill }),
		reported("engine_first_token_ms", true, func(r *usage.Row) *int64 { return r.Reported.FirstToken() }),
		reported("engine_between_tokens_ms", true, func(r *usage.Row) *int64 { return r.Reported.Between }),
	}

	requestsColumn   = sum("requests", func(r *usage.Row) int64 { return r.Requests })
	promptColumn     = sum("prompt_tokens", func(r *usage.Row) int64 { return r.PromptTokens })
	completionColumn = sum("completion_tokens", func(r *usage.Row) int64 { return r.CompletionTokens })
	tokensColumn     = sum("total_tokens", (*usage.Row).Tokens)
)

// field returns a column that needs no names.
func field(name string, value func(*usage.Row) any) column {
	return column{name: name, value: func(_ Names, r *usage.Row) any { return value(r) }}
}

// sum returns a column that the last line of a table sums.
func sum(name string, value func(*usage.Row) int64) column {
	return column{name: name, summed: true, value: func(_ Names, r *usage.Row) any { return value(r) }}
}

// reported returns a column of JSON with a number that is not always known: tokens, or a time in microseconds.
func reported(name string, micros bool, value func(*usage.Row) *int64) column {
	c := field(name, func(r *usage.Row) any {
		n := value(r)
		switch {
		case n == nil:
			return nil
		case micros:
			return milliseconds(time.Duration(*n) * time.Microsecond)
		}
		return *n
	})
	c.jsonOnly = true
	return c
}

// notInTable returns a copy of the column that tables omit.
func notInTable(c column) column {
	c.omitFromTable = true
	return c
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// RequestColumns are the columns of the console's files of requests.
var RequestColumns = append(Columns{
	requestIDColumn, timeColumn, accountColumn, keyColumn, keyNameColumn, modelColumn, backendColumn,
	workloadColumn, userColumn, streamColumn,
	statusColumn, codeColumn, stateColumn, promptColumn, completionColumn,
	queueColumn, firstTokenColumn, totalTimeColumn,
}, reportsColumns...)

// commandLine has the columns of the groupings of `basegate usage`, in the order in which its help names them.
var commandLine = []struct {
	by      usage.Grouping
	columns Columns
}{
	{usage.ByRequest, append(Columns{
		notInTable(requestIDColumn), timeColumn, keyColumn, accountColumn, modelColumn, backendColumn,
		notInTable(endpointColumn), notInTable(workloadColumn), notInTable(userColumn), notInTable(streamColumn),
		statusColumn, codeColumn, stateColumn, promptColumn, completionColumn,
		notInTable(queueColumn), notInTable(firstTokenColumn), totalTimeColumn, chainIDColumn, ofRunColumn, savedColumn,
	}, reportsColumns...)},
	{usage.ByKey, grouped(keyColumn, nameColumn, accountColumn)},
	{usage.ByAccount, grouped(accountColumn)},
	{usage.ByModel, grouped(modelColumn)},
	{usage.ByDay, grouped(dayColumn)},
	{usage.ByHour, grouped(hourColumn)},
	{usage.ByUser, grouped(userColumn)},
	{usage.ByWorkload, grouped(workloadColumn)},
	{usage.ByRun, grouped(runColumn, accountColumn)},
}

// fixed returns the columns that every row of a report has.
func (c Columns) fixed() Columns {
	return slices.DeleteFunc(slices.Clone(c), func(x column) bool { return x.jsonOnly })
}

// shown returns the columns that tables have.
func (c Columns) shown() Columns {
	return slices.DeleteFunc(slices.Clone(c), func(x column) bool { return x.omitFromTable })
}

// grouped returns the columns that identify a group, followed by its sums.
func grouped(group ...column) Columns {
	return append(group, requestsColumn, promptColumn, completionColumn, tokensColumn, savedColumn, cachedColumn, knownColumn)
}

// CommandLineColumns returns the columns of `basegate usage`; false if it does not offer the grouping.
func CommandLineColumns(by usage.Grouping) (Columns, bool) {
	for _, offered := range commandLine {
		if offered.by == by {
			return offered.columns, true
		}
	}
	return nil, false
}

// CommandLineGroupings returns the groupings that CommandLineColumns has.
func CommandLineGroupings() []string {
	var all []string
	for _, offered := range commandLine {
		all = append(all, string(offered.by))
	}
	return all
}
