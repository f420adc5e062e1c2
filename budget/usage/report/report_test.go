package report_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/budget/usage"
	"basegate/budget/usage/report"
	"basegate/identity"
)

var allGroupings = []usage.Grouping{
	usage.ByRequest, usage.ByKey, usage.ByAccount, usage.ByModel, usage.ByDay,
	usage.ByHour, usage.ByWorkload, usage.ByUser,
}

func TestColumnsOfEveryGrouping(t *testing.T) {
	const (
		sums        = "requests,prompt_tokens,completion_tokens,total_tokens"
		consoleSums = "requests,errors,prompt_tokens,completion_tokens,total_tokens"
		percentiles = ",first_token_p50_ms,first_token_p95_ms,first_token_p99_ms,total_p50_ms,total_p95_ms,total_p99_ms"
	)
	commandLine := map[usage.Grouping]string{
		usage.ByRequest: "request_id,time,key,account,model,backend,endpoint,workload,user,stream,status,code,state," +
			"prompt_tokens,completion_tokens,queue_ms,first_token_ms,total_ms",
		usage.ByKey:      "key,name,account," + sums,
		usage.ByAccount:  "account," + sums,
		usage.ByModel:    "model," + sums,
		usage.ByDay:      "day," + sums,
		usage.ByHour:     "hour," + sums,
		usage.ByUser:     "user," + sums,
		usage.ByWorkload: "workload," + sums,
	}
	for _, by := range append(allGroupings, "week", "") {
		if columns, ok := report.CommandLineColumns(by); ok != (commandLine[by] != "") {
			t.Errorf("the command line offers %q: %v", by, ok)
		} else if got := header(t, columns); got != commandLine[by] {
			t.Errorf("command line by %q:\ngot  %s\nwant %s", by, got, commandLine[by])
		}
	}
	for want, columns := range map[string]report.Columns{
		"request_id,time,account,key,key_name,model,backend,workload,user,stream,status,code,state," +
			"prompt_tokens,completion_tokens,queue_ms,first_token_ms,total_ms": report.RequestColumns,
		"key,key_name,account," + consoleSums: report.GroupColumns("", usage.ByKey, false),
		"account," + consoleSums:              report.GroupColumns("", usage.ByAccount, false),
		"model," + consoleSums + percentiles:  report.GroupColumns("", usage.ByModel, true),
		"user," + consoleSums:                 report.GroupColumns("", usage.ByUser, false),
		"workload," + consoleSums:             report.GroupColumns("", usage.ByWorkload, false),
		"endpoint," + consoleSums:             report.GroupColumns("", usage.ByEndpoint, false),
		"hour,workload," + consoleSums:        report.GroupColumns(usage.ByHour, usage.ByWorkload, false),
		"day,model," + consoleSums:            report.GroupColumns(usage.ByDay, usage.ByModel, false),
		"month,account," + consoleSums:        report.GroupColumns(usage.ByMonth, usage.ByAccount, false),
	} {
		if got := header(t, columns); got != want {
			t.Errorf("console:\ngot  %s\nwant %s", got, want)
		}
	}
	want := []string{"request", "key", "account", "model", "day", "hour", "user", "workload", "run"}
	if diff := cmp.Diff(want, report.CommandLineGroupings()); diff != "" {
		t.Errorf("groupings of the command line (-want +got):\n%s", diff)
	}
}

// header returns the header line of an empty report as CSV.
func header(t *testing.T, columns report.Columns) string {
	t.Helper()
	var out strings.Builder
	if err := (report.Usage{Columns: columns, Rows: rows()}).WriteCSV(&out); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

func rows(all ...usage.Row) iter.Seq2[usage.Row, error] {
	return func(yield func(usage.Row, error) bool) {
		for _, r := range all {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func keysNamed(names map[string]identity.Principal) func(string) (identity.Principal, bool) {
	return func(id string) (identity.Principal, bool) { p, ok := names[id]; return p, ok }
}

var testNames = report.Names{
	Keys:  keysNamed(map[string]identity.Principal{"key_1": {KeyPrefix: "acs-bm-abcdef", KeyName: "laptop"}}),
	Email: func(account string) string { return map[string]string{"acc_1": "ada@example.org"}[account] },
}

// testRequests are a request of a known key and account, and one whose ids have no names.
var testRequests = []usage.Row{
	{
		Requests: 1, PromptTokens: 10, CompletionTokens: 5, Time: time.Date(2026, 11, 20, 12, 0, 0, 500_000_000, time.UTC),
		KeyID: "key_1", AccountID: "acc_1", Model: "m", Workload: "batch", User: `<&>"`, RequestID: "req_1", Backend: "gpu1",
		Endpoint: "/v1/completions", Stream: true, Status: 200, State: "settled",
		Queue: 1500 * time.Microsecond, FirstToken: 20 * time.Millisecond, Total: 1_234_567_891 * time.Microsecond,
		CachedTokens: 4, KnownTokens: 10,
		Reported: usage.Reported{CachedTokens: new(int64(4)), Queue: new(int64(1500)), Prefill: new(int64(20_000)), Between: new(int64(9100))},
	},
	{
		Requests: 1, PromptTokens: 1, Time: time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC),
		KeyID: "key_2", AccountID: "acc_2", Model: "m", RequestID: "req_2", Backend: "gpu1",
		Endpoint: "/v1/chat/completions", Status: 502, Code: "vllm_oom", State: "settled", Total: time.Second, ChainID: "45762",
	},
}

func TestFormats(t *testing.T) {
	columns, _ := report.CommandLineColumns(usage.ByRequest)
	commandLine := report.Usage{Columns: columns, Names: testNames, Rows: rows(testRequests...)}
	console := report.Usage{Columns: report.RequestColumns, Names: testNames, Rows: rows(testRequests...)}
	empty := report.Usage{Columns: commandLine.Columns, Rows: rows()}
	for name, c := range map[string]struct {
		write func(io.Writer) error
		want  string
	}{
		"CSV of the command line": {commandLine.WriteCSV, `
request_id,time,key,account,model,backend,endpoint,workload,user,stream,status,code,state,prompt_tokens,completion_tokens,queue_ms,first_token_ms,total_ms
req_1,2026-11-20T12:00:00.5Z,acs-bm-abcdef,ada@example.org,m,gpu1,/v1/completions,batch,"<&>""",true,200,,settled,10,5,1.5,20,1234567.891
req_2,2026-11-02T00:00:00Z,key_2,acc_2,m,gpu1,/v1/chat/completions,,,false,502,vllm_oom,settled,1,0,0,0,1000
`},
		"CSV of the console": {console.WriteCSV, `
request_id,time,account,key,key_name,model,backend,workload,user,stream,status,code,state,prompt_tokens,completion_tokens,queue_ms,first_token_ms,total_ms
req_1,2026-11-20T12:00:00.5Z,ada@example.org,acs-bm-abcdef,laptop,m,gpu1,batch,"<&>""",true,200,,settled,10,5,1.5,20,1234567.891
req_2,2026-11-02T00:00:00Z,acc_2,key_2,,m,gpu1,,,false,502,vllm_oom,settled,1,0,0,0,1000
`},
		"JSON": {commandLine.WriteJSON, `
[
  {"request_id": "req_1", "time": "2026-11-20T12:00:00.5Z", "key": "acs-bm-abcdef", "account": "ada@example.org", "model": "m", "backend": "gpu1", "endpoint": "/v1/completions", "workload": "batch", "user": "<&>\"", "stream": true, "status": 200, "code": "", "state": "settled", "prompt_tokens": 10, "completion_tokens": 5, "queue_ms": 1.5, "first_token_ms": 20, "total_ms": 1234567.891, "cached_tokens": 4, "engine_queue_ms": 1.5, "engine_prefill_ms": 20, "engine_first_token_ms": 21.5, "engine_between_tokens_ms": 9.1},
  {"request_id": "req_2", "time": "2026-11-02T00:00:00Z", "key": "key_2", "account": "acc_2", "model": "m", "backend": "gpu1", "endpoint": "/v1/chat/completions", "workload": "", "user": "", "stream": false, "status": 502, "code": "vllm_oom", "state": "settled", "prompt_tokens": 1, "completion_tokens": 0, "queue_ms": 0, "first_token_ms": 0, "total_ms": 1000, "chain_id": "45762"}
]
`},
		"table": {commandLine.WriteTable, `
TIME                 KEY            ACCOUNT          MODEL  BACKEND  STATUS  CODE      STATE    PROMPT TOKENS  COMPLETION TOKENS  TOTAL MS
2026-11-20 12:00:00  acs-bm-abcdef  ada@example.org  m      gpu1     200     -         settled  10             5                  1234567.891
2026-11-02 00:00:00  key_2          acc_2            m      gpu1     502     vllm_oom  settled  1              0                  1000
total                                                                                           11             5
`},
		"empty JSON": {empty.WriteJSON, "\n[]\n"},
		"empty table": {empty.WriteTable, `
TIME   KEY  ACCOUNT  MODEL  BACKEND  STATUS  CODE  STATE  PROMPT TOKENS  COMPLETION TOKENS  TOTAL MS
total                                                     0              0
`},
	} {
		var out strings.Builder
		if err := c.write(&out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want[1:], out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Clients choose the user tag and the workload; people choose the names of keys.
func TestCSVEscapesFormulas(t *testing.T) {
	for tag, want := range map[string]string{
		"":           "",
		"a=1":        "a=1",
		" =1":        " =1",
		"'=1":        "'=1",
		"\xff=1":     "\xff=1",
		"=1":         "'=1",
		"+1":         "'+1",
		"-1":         "'-1",
		"@SUM(A1)":   "'@SUM(A1)",
		"\t=1":       "'\t=1",
		"\r=1":       "'\r=1",
		"\n=1":       "'\n=1",
		"＝1":         "'＝1",
		"＋1":         "'＋1",
		"－1":         "'－1",
		"＠x":         "'＠x",
		"=HYPERLINK": "'=HYPERLINK",
	} {
		names := report.Names{Keys: keysNamed(map[string]identity.Principal{"key_1": {KeyPrefix: "acs", KeyName: tag}})}
		row := usage.Row{KeyID: "key_1", User: tag, Workload: tag}
		var csvOut, jsonOut bytes.Buffer
		if err := (report.Usage{Columns: report.RequestColumns, Names: names, Rows: rows(row)}).WriteCSV(&csvOut); err != nil {
			t.Fatal(err)
		}
		record := readCSV(t, &csvOut)[0]
		for _, column := range []string{"user", "workload", "key_name"} {
			if got := record[column]; got != want {
				t.Errorf("%s %q is written as %q, want %q", column, tag, got, want)
			}
		}
		if err := (report.Usage{Columns: report.RequestColumns, Names: names, Rows: rows(row)}).WriteJSON(&jsonOut); err != nil {
			t.Fatal(err)
		}
		var objects []map[string]any
		if err := json.Unmarshal(jsonOut.Bytes(), &objects); err != nil {
			t.Fatal(err)
		}
		if got := objects[0]["user"]; got != strings.ToValidUTF8(tag, "\ufffd") {
			t.Errorf("user %q is %q in JSON", tag, got)
		}
	}
}

// readCSV returns the records as maps from the header's columns.
func readCSV(t *testing.T, in io.Reader) []map[string]string {
	t.Helper()
	records, err := csv.NewReader(in).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var all []map[string]string
	for _, cells := range records[1:] {
		record := map[string]string{}
		for i, cell := range cells {
			record[records[0][i]] = cell
		}
		all = append(all, record)
	}
	return all
}

// Any tags read back from CSV as they were written, but for the apostrophe of those that a spreadsheet would take for a
// formula.
func FuzzCSV(f *testing.F) {
	for _, tag := range []string{
		"", "a", "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", `"=1"`, "a,b", "a\"b", "a\r\nb", " =1", "\xff", "\\.", "é",
		"\x00=1", ";=1", "＝1", "＠x",
	} {
		f.Add(tag, "b")
		f.Add("a", tag)
	}
	f.Fuzz(func(t *testing.T, user, workload string) {
		row := usage.Row{User: user, Workload: workload}
		var out bytes.Buffer
		if err := (report.Usage{Columns: report.RequestColumns, Rows: rows(row, row)}).WriteCSV(&out); err != nil {
			t.Fatal(err)
		}
		records := readCSV(t, &out)
		if len(records) != 2 {
			t.Fatalf("%q, %q: %d records", user, workload, len(records))
		}
		for _, record := range records {
			for column, tag := range map[string]string{"user": user, "workload": workload} {
				want := tag
				for _, prefix := range []string{"=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"} {
					if strings.HasPrefix(tag, prefix) {
						want = "'" + tag
					}
				}
				// The reader turns each \r\n into \n.
				if got := record[column]; got != strings.ReplaceAll(want, "\r\n", "\n") {
					t.Errorf("%s %q reads back as %q, want %q", column, tag, got, want)
				}
			}
		}
	})
}

var (
	errRead  = errors.New("database is locked")
	errWrite = errors.New("no space left on device")
)

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errWrite }

func TestErrorsOfReadingAndWritingAreReturned(t *testing.T) {
	columns, _ := report.CommandLineColumns(usage.ByRequest)
	long := make([]usage.Row, 5000) // more than any buffer holds
	failing := func(yield func(usage.Row, error) bool) { yield(usage.Row{}, errRead) }
	for name, write := range map[string]func(report.Usage, io.Writer) error{
		"CSV": report.Usage.WriteCSV, "JSON": report.Usage.WriteJSON, "table": report.Usage.WriteTable,
	} {
		if err := write(report.Usage{Columns: columns, Rows: failing}, io.Discard); !errors.Is(err, errRead) {
			t.Errorf("%s: a failed read returns %v", name, err)
		}
		for _, all := range [][]usage.Row{nil, long} {
			if err := write(report.Usage{Columns: columns, Rows: rows(all...)}, failingWriter{}); !errors.Is(err, errWrite) {
				t.Errorf("%s of %d rows: a failed write returns %v", name, len(all), err)
			}
		}
	}
}

// Clients choose the user tag, which must not move the cursor of a terminal or look like another row.
func TestTableShowsControlCharactersAsEscapes(t *testing.T) {
	var out bytes.Buffer
	table := report.NewTable(&out, []string{"user", "requests"})
	table.Row([]string{"\x1b[31mred\nline\u202e", "1"})
	table.Row([]string{"naïve \"ü\" 日本", "2"})
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, `\x1b[31mred\nline\u202e`) || !strings.Contains(got, `naïve "ü" 日本`) || strings.Count(got, "\n") != 3 {
		t.Errorf("got %q, want escapes for control characters only", got)
	}
}
