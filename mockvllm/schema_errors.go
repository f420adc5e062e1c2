package mockvllm

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// schemaFailure is pydantic's error about a field of a request, or about its body as a whole if the field is empty.
// details are more members in Python's notation.
func (s *versionSpec) schemaFailure(kind, field, message string, input gjson.Result, details string) *failure {
	if s.Rust {
		return s.rustSchemaFailure(kind, field)
	}
	loc, quoted := "('body',)", repr(input)
	if _, err := strconv.Atoi(field); err == nil { // a position, not a name
		loc = "('body', " + field + ")"
	} else if field != "" {
		loc = "('body', '" + field + "')"
	}
	param := strings.TrimSuffix("body."+field, ".")
	if s.Clamps { // since 0.32 the location is a dotted path, and a container is quoted by its size
		loc, quoted = "'"+param+"'", "'"+strings.Trim(quoted, "'")+"'"
		if input.IsObject() {
			quoted = fmt.Sprintf("'<dict of %d items>'", len(input.Map()))
		}
	}
	problem := fmt.Sprintf("{'type': '%s', 'loc': %s, 'msg': '%s', 'input': %s%s}", kind, loc, message, quoted, details)
	if s.Nested {
		return s.invalidBody(validationHeadline+problem, param)
	}
	return s.invalidBody("["+problem+"]", param)
}

const validationHeadline = "1 validation error:\n  "

// invalidBody is an error about a request that is not of the right form.
func (s *versionSpec) invalidBody(message, param string) *failure {
	return &failure{status: http.StatusBadRequest, errorType: s.ValidationType, message: message, param: param}
}

// repr quotes a value as Python does, as far as that is JSON with other quotes and names.
func repr(v gjson.Result) string {
	if name, ok := map[string]string{"": "None", "null": "None", "true": "True", "false": "False"}[v.Raw]; ok {
		return name
	}
	return strings.ReplaceAll(v.Raw, `"`, "'")
}
