package usage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"basegate/database"
)

// statement is a query under construction. Its text consists of constants; all values are parameters.
type statement struct {
	text strings.Builder
	args []any
}

func (s *statement) add(text string) { s.text.WriteString(text) }

// addParam adds text, followed by a parameter.
func (s *statement) addParam(text string, value any) {
	s.args = append(s.args, value)
	s.text.WriteString(text + "$" + strconv.Itoa(len(s.args)))
}

// addCondition adds a condition of a dialect, in which a parameter takes the place of %s.
func (s *statement) addCondition(condition string, value any) {
	s.args = append(s.args, value)
	s.add(` AND ` + fmt.Sprintf(condition, "$"+strconv.Itoa(len(s.args))))
}

// with returns a statement with another text and the same parameters.
func (s *statement) with(text string) *statement {
	other := &statement{args: s.args}
	other.add(text)
	return other
}

// addFilter adds the conditions on account, key, model and run, whose columns have the given prefix.
func (s *statement) addFilter(f *Filter, prefix string) {
	for _, c := range []struct{ column, value string }{
		{"account_id", f.Account}, {"key_id", f.Key}, {"model", f.Model}, {"run", f.Run},
	} {
		if c.value != "" {
			s.addParam(` AND `+prefix+c.column+` = `, c.value)
		}
	}
}

// addRowFilter adds the conditions of a filter on rows of requests.
func (s *statement) addRowFilter(f *Filter) {
	from, to := f.bounds()
	if from > minTime {
		s.addParam(` AND time >= `, from)
	}
	if to < maxTime {
		s.addParam(` AND time < `, to)
	}
	s.addFilter(f, "")
	if f.Failed {
		s.add(` AND ` + failedCondition)
	}
	if f.Search != "" {
		s.args = append(s.args, f.Search, len([]rune(f.Search)))
		s.add(searchCondition(len(s.args)-1, len(s.args)))
	}
}

// searchCondition returns the condition for Filter.Search. The arguments are the numbers of the parameters that hold
// the text and its length in characters. It does not use LIKE, because the text may contain its wildcards.
func searchCondition(text, length int) string {
	startsWith := func(column string) string { return fmt.Sprintf(`substr(%s, 1, $%d) = $%d`, column, length, text) }
	contains := func(column string) string { return fmt.Sprintf(`replace(%s, $%d, '') <> %s`, column, text, column) }
	return ` AND (` + strings.Join([]string{
		startsWith("request_id"), startsWith("code"), contains("user_tag"), contains("workload"), contains("backend"),
	}, ` OR `) + `)`
}

// each calls scan with each row of the result.
func (s *statement) each(ctx context.Context, from source, scan func(*sql.Rows) error) error {
	return database.Each(ctx, from, scan, s.text.String(), s.args...)
}

// queryInt runs a query whose result is one integer; found is false if it is NULL or there is none.
func (s *statement) queryInt(ctx context.Context, from source) (n int64, found bool, err error) {
	var result sql.NullInt64
	err = from.QueryRowContext(ctx, s.text.String(), s.args...).Scan(&result)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return result.Int64, result.Valid, err
}
