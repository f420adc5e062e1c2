package mockvllm

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// schemaError is one error of pydantic's validation of a request.
type schemaError struct {
	kind    string
	loc     []string // path below "body"
	message string
	input   gjson.Result // the offending value
	context string       // Python repr of pydantic's ctx; empty for most errors
}

// schemaFailure formats errors as the version does: old ones print the list, newer ones a headline and one line per error.
func (s *versionSpec) schemaFailure(problems ...schemaError) *failure {
	if s.Rust {
		return s.rustSchemaFailure(problems[0])
	}
	reprs := make([]string, len(problems))
	for i, p := range problems {
		location, input := tupleLocation(p.loc), repr(p.input)
		if s.Clamps {
			location, input = reprString(dottedLocation(p.loc)), scrubbedInput(p.input)
		}
		reprs[i] = fmt.Sprintf("{'type': %s, 'loc': %s, 'msg': %s, 'input': %s%s}", reprString(p.kind), location, reprString(p.message), input, p.context)
	}
	f := &failure{
		status: http.StatusBadRequest, errorType: s.ValidationType, param: dottedLocation(problems[0].loc),
		message: "[" + strings.Join(reprs, ", ") + "]",
	}
	if s.Nested {
		f.message = s.headline(len(problems)) + strings.Join(reprs, "\n  ")
	}
	return f
}

func (*versionSpec) headline(count int) string {
	if count == 1 {
		return "1 validation error:\n  "
	}
	return fmt.Sprintf("%d validation errors:\n  ", count)
}

// tupleLocation formats the path of an error as Python prints a tuple.
func tupleLocation(path []string) string {
	loc := "'body',"
	for i, step := range path {
		if _, err := strconv.Atoi(step); err != nil {
			step = reprString(step) // a field name, not a list index
		}
		loc += " " + step
		if i < len(path)-1 {
			loc += ","
		}
	}
	return "(" + loc + ")"
}

// dottedLocation joins a path without the names of union branches.
func dottedLocation(path []string) string {
	loc := []string{"body"}
	for i, step := range path {
		if branch := i == 1 && (step == "str" || strings.HasPrefix(step, "list[")); !branch {
			loc = append(loc, step)
		}
	}
	return strings.Join(loc, ".")
}

// scrubbedInput quotes an offending value since 0.32: only a string in full, and a container by its size.
func scrubbedInput(v gjson.Result) string {
	switch {
	case v.Type == gjson.String:
		return repr(v)
	case v.IsArray():
		return fmt.Sprintf("'<list of %d items>'", len(v.Array()))
	case v.IsObject():
		return fmt.Sprintf("'<dict of %d items>'", len(v.Map()))
	}
	return reprString(repr(v))
}

// repr formats a value as Python prints it, which is how vLLM quotes requests in its errors.
func repr(v gjson.Result) string {
	switch v.Type {
	case gjson.Null:
		return "None"
	case gjson.True:
		return "True"
	case gjson.False:
		return "False"
	case gjson.Number:
		return v.Raw
	case gjson.String:
		return reprString(v.Str)
	case gjson.JSON:
	}
	var parts []string
	v.ForEach(func(name, item gjson.Result) bool {
		part := repr(item)
		if v.IsObject() {
			part = repr(name) + ": " + part
		}
		parts = append(parts, part)
		return true
	})
	if v.IsObject() {
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func reprString(text string) string {
	quote := "'"
	if strings.Contains(text, "'") && !strings.Contains(text, `"`) {
		quote = `"`
	}
	return quote + strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`, "\t", `\t`, quote, `\`+quote).Replace(text) + quote
}
