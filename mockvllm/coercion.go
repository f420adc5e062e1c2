package mockvllm

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// schemaError is one error of pydantic's validation of a request.
type schemaError struct {
	kind    string
	loc     []string // path below "body"
	message string
	input   value  // the offending value
	context string // Python repr of pydantic's ctx; empty for most errors
}

// repr formats the error as Python prints pydantic's error dict.
func (s *versionSpec) repr(p schemaError) string {
	text := fmt.Sprintf("{'type': %s, 'loc': %s, 'msg': %s, 'input': %s",
		reprString(p.kind), s.reprLocation(p.loc), reprString(p.message), s.reprInput(p.input))
	if p.context != "" {
		text += ", 'ctx': " + p.context
	}
	return text + "}"
}

// reprLocation formats the path of an error: a tuple, or since 0.32 a dotted path.
func (s *versionSpec) reprLocation(path []string) string {
	if s.scrubsSchemaErrors {
		return reprString(dottedLocation(path))
	}
	loc := []string{"'body'"}
	for _, step := range path {
		if _, err := strconv.Atoi(step); err != nil {
			step = reprString(step) // a field name, not a list index
		}
		loc = append(loc, step)
	}
	location := strings.Join(loc, ", ")
	if len(loc) == 1 {
		location += ","
	}
	return "(" + location + ")"
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

// reprInput formats the offending value. Since 0.32 only a string is quoted in full, and a container by its size.
func (s *versionSpec) reprInput(v value) string {
	switch {
	case !s.scrubsSchemaErrors || v.kind == stringKind:
		return v.repr()
	case v.kind == listKind:
		return fmt.Sprintf("'<list of %d items>'", len(v.items))
	case v.kind == objectKind:
		return fmt.Sprintf("'<dict of %d items>'", len(v.members))
	}
	return reprString(v.repr())
}

// schemaFailure formats validation errors as the version does: old versions print the list, newer ones a headline and
// one line per error, some both.
func (s *versionSpec) schemaFailure(problems []schemaError) *failure {
	if s.rust {
		return s.rustSchemaFailure(problems[0])
	}
	reprs := make([]string, len(problems))
	for i, p := range problems {
		reprs[i] = s.repr(p)
	}
	list := "[" + strings.Join(reprs, ", ") + "]"
	message := list
	if s.contentType == badRequestType {
		plural := "s"
		if len(problems) == 1 {
			plural = ""
		}
		message = fmt.Sprintf("%d validation error%s:\n  %s", len(problems), plural, strings.Join(reprs, "\n  "))
		if !s.scrubsSchemaErrors {
			message += "\n"
		}
		if s.repeatsSchemaErrors {
			message += " " + list
		}
	}
	param := strings.Join(append([]string{"body"}, problems[0].loc...), ".")
	if s.scrubsSchemaErrors {
		param = dottedLocation(problems[0].loc)
	}
	return &failure{status: http.StatusBadRequest, errorType: s.validationType, message: message, param: param}
}

// typeError says why a value does not fit a type, in pydantic's type and message. The zero value means that it fits.
type typeError struct{ kind, message string }

var (
	intType     = typeError{"int_type", "Input should be a valid integer"}
	intParsing  = typeError{"int_parsing", "Input should be a valid integer, unable to parse string as an integer"}
	intFraction = typeError{"int_from_float", "Input should be a valid integer, got a number with a fractional part"}
	intFinite   = typeError{"finite_number", "Input should be a finite number"}

	floatType    = typeError{"float_type", "Input should be a valid number"}
	floatParsing = typeError{"float_parsing", "Input should be a valid number, unable to parse string as a number"}

	boolType    = typeError{"bool_type", "Input should be a valid boolean"}
	boolParsing = typeError{"bool_parsing", "Input should be a valid boolean, unable to interpret input"}

	stringType = typeError{"string_type", "Input should be a valid string"}
	listType   = typeError{"list_type", "Input should be a valid list"}
	dictType   = typeError{"dict_type", "Input should be a valid dictionary"}
)

// asInt converts a value to an integer as laxly as pydantic does: true, "16", 16.0 and 1e2 are integers. Values beyond
// 64 bits saturate.
func asInt(v value) (int64, typeError) {
	switch v.kind {
	case boolKind:
		if v.boolean {
			return 1, typeError{}
		}
		return 0, typeError{}
	case numberKind:
		if v.isInt() {
			return parseSaturated(v.text), typeError{}
		}
		return floatToInt(v.text)
	case stringKind:
		text := strings.TrimSuffix(strings.TrimSpace(strings.ReplaceAll(v.text, "_", "")), ".0")
		if literal := strings.TrimPrefix(text, "+"); literal != "" && numberLiteral(literal) == literal &&
			(value{kind: numberKind, text: literal}).isInt() {
			return parseSaturated(literal), typeError{}
		}
		return 0, intParsing
	case nullKind, listKind, objectKind:
	}
	return 0, intType
}

func parseSaturated(literal string) int64 {
	number, _ := strconv.ParseInt(literal, 10, 64) // ParseInt saturates when out of range
	return number
}

func floatToInt(literal string) (int64, typeError) {
	number, _ := strconv.ParseFloat(literal, 64) // out of range yields an infinity
	switch {
	case math.IsNaN(number) || math.IsInf(number, 0):
		return 0, intFinite
	case number != math.Trunc(number):
		return 0, intFraction
	case math.Abs(number) >= math.MaxInt64:
		return int64(math.Copysign(math.MaxInt64, number)), typeError{}
	}
	return int64(number), typeError{}
}

func asFloat(v value) (float64, typeError) {
	switch v.kind {
	case boolKind:
		number, _ := asInt(v)
		return float64(number), typeError{}
	case numberKind:
		number, _ := strconv.ParseFloat(v.text, 64) // out of range yields an infinity, as in Python
		return number, typeError{}
	case stringKind:
		number, err := strconv.ParseFloat(strings.TrimSpace(v.text), 64)
		if err != nil && !math.IsInf(number, 0) {
			return 0, floatParsing
		}
		return number, typeError{}
	case nullKind, listKind, objectKind:
	}
	return 0, floatType
}

func asBool(v value) (bool, typeError) {
	switch v.kind {
	case boolKind:
		return v.boolean, typeError{}
	case numberKind:
		number, _ := strconv.ParseFloat(v.text, 64) // neither 0 nor 1 when out of range
		if number == 0 || number == 1 {
			return number == 1, typeError{}
		}
		return false, boolParsing
	case stringKind:
		switch strings.ToLower(v.text) {
		case "true", "1", "yes", "on", "t", "y":
			return true, typeError{}
		case "false", "0", "no", "off", "f", "n":
			return false, typeError{}
		}
		return false, boolParsing
	case nullKind, listKind, objectKind:
	}
	return false, boolType
}

func asString(v value) (string, typeError) {
	if v.kind != stringKind {
		return "", stringType
	}
	return v.text, typeError{}
}

// fieldReader reads typed fields from a request object and collects validation errors.
type fieldReader struct {
	body  value // without the members that the version ignores
	whole value // the request, which errors quote
	errs  []schemaError
}

// addError adds an error at the path loc, unless c is zero.
func (f *fieldReader) addError(c typeError, input value, loc ...string) {
	if c.kind != "" {
		f.errs = append(f.errs, schemaError{kind: c.kind, loc: loc, message: c.message, input: input})
	}
}

// addBound adds an error about a number below its lower bound.
func (f *fieldReader) addBound(least int, input value, loc ...string) {
	f.errs = append(f.errs, schemaError{
		kind: "greater_than_equal", loc: loc, input: input, context: fmt.Sprintf("{'ge': %d}", least),
		message: fmt.Sprintf("Input should be greater than or equal to %d", least),
	})
}

// addLiteralError adds an error about a string that is none of the expected ones.
func (f *fieldReader) addLiteralError(input value, expected string, loc ...string) {
	f.errs = append(f.errs, schemaError{
		kind: "literal_error", loc: loc, input: input, message: "Input should be " + expected,
		context: "{'expected': " + reprString(expected) + "}",
	})
}

// readField parses the named field into dst. It returns false, and leaves dst alone, if the field is absent, invalid,
// or null and nullable.
func readField[T any](f *fieldReader, name string, nullable bool, parse func(value) (T, typeError), dst *T) bool {
	v, present := f.body.member(name)
	if !present || nullable && v.kind == nullKind {
		return false
	}
	result, c := parse(v)
	if c.kind != "" {
		f.addError(c, v, name)
		return false
	}
	*dst = result
	return true
}

func (f *fieldReader) integer(name string, nullable bool, dst *int) bool {
	var number int64
	if !readField(f, name, nullable, asInt, &number) {
		return false
	}
	*dst = int(number)
	return true
}

func (f *fieldReader) float(name string, dst *float64) { readField(f, name, true, asFloat, dst) }

func (f *fieldReader) boolean(name string, nullable bool, dst *bool) {
	readField(f, name, nullable, asBool, dst)
}

// readList reads the named list into dst.
func readList[T any](f *fieldReader, name string, convert func(value) (T, typeError), dst *[]T) {
	v, present := f.body.member(name)
	if !present || v.kind == nullKind {
		return
	}
	if v.kind != listKind {
		f.addError(listType, v, name)
		return
	}
	for i, item := range v.items {
		element, c := convert(item)
		f.addError(c, item, name, decimal(i))
		*dst = append(*dst, element)
	}
}

// ints reads a list of integers.
func (f *fieldReader) ints(name string, dst *[]int) {
	readList(f, name, func(v value) (int, typeError) {
		number, c := asInt(v)
		return int(number), c
	}, dst)
}

// strings reads a string or a list of strings.
func (f *fieldReader) strings(name string, dst *[]string) {
	v, present := f.body.member(name)
	switch {
	case !present || v.kind == nullKind:
	case v.kind == stringKind:
		*dst = []string{v.text}
	case v.kind == listKind:
		for i, item := range v.items {
			text, c := asString(item)
			f.addError(c, item, name, "list[str]", strconv.Itoa(i))
			*dst = append(*dst, text)
		}
	default:
		f.addError(stringType, v, name, "str")
		f.addError(listType, v, name, "list[str]")
	}
}

// stringList reads a list of strings.
func (f *fieldReader) stringList(name string, dst *[]string) {
	readList(f, name, asString, dst)
}
