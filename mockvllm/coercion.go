package mockvllm

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// A problem is one of pydantic's complaints about a request.
type problem struct {
	kind    string
	place   []string // below the body
	message string
	input   string // repr of what was given
	context string // repr; empty for most
}

// repr is the problem as Python prints it.
func (p problem) repr() string {
	place := []string{"'body'"}
	for _, step := range p.place {
		if _, err := strconv.Atoi(step); err != nil {
			step = reprString(step) // a name, not a list's index
		}
		place = append(place, step)
	}
	location := strings.Join(place, ", ")
	if len(place) == 1 {
		location += ","
	}
	text := fmt.Sprintf("{'type': %s, 'loc': (%s), 'msg': %s, 'input': %s",
		reprString(p.kind), location, reprString(p.message), p.input)
	if p.context != "" {
		text += ", 'ctx': " + p.context
	}
	return text + "}"
}

// schemaFailure words problems as the version does: old ones print the list, newer ones a headline, some both.
func (s *shape) schemaFailure(problems []problem) *failure {
	reprs := make([]string, len(problems))
	for i, p := range problems {
		reprs[i] = p.repr()
	}
	list := "[" + strings.Join(reprs, ", ") + "]"
	message := list
	if s.contentType == badRequestType {
		plural := "s"
		if len(problems) == 1 {
			plural = ""
		}
		message = fmt.Sprintf("%d validation error%s:\n  %s\n", len(problems), plural, strings.Join(reprs, "\n  "))
		if s.repeatsProblems {
			message += " " + list
		}
	}
	param := strings.Join(append([]string{"body"}, problems[0].place...), ".")
	return &failure{status: http.StatusBadRequest, kind: s.validationType, message: message, param: param}
}

// A complaint is why a value does not fit a type; the zero one means that it fits.
type complaint struct{ kind, message string }

var (
	intType     = complaint{"int_type", "Input should be a valid integer"}
	intParsing  = complaint{"int_parsing", "Input should be a valid integer, unable to parse string as an integer"}
	intFraction = complaint{"int_from_float", "Input should be a valid integer, got a number with a fractional part"}
	intFinite   = complaint{"finite_number", "Input should be a finite number"}

	floatType    = complaint{"float_type", "Input should be a valid number"}
	floatParsing = complaint{"float_parsing", "Input should be a valid number, unable to parse string as a number"}

	boolType    = complaint{"bool_type", "Input should be a valid boolean"}
	boolParsing = complaint{"bool_parsing", "Input should be a valid boolean, unable to interpret input"}

	stringType = complaint{"string_type", "Input should be a valid string"}
	listType   = complaint{"list_type", "Input should be a valid list"}
	dictType   = complaint{"dict_type", "Input should be a valid dictionary"}
)

// asInt reads an integer as laxly as pydantic: true, "16", 16.0 and 1e2 are integers. What 64 bits do not hold is
// the nearest that they do.
func asInt(v value) (int64, complaint) {
	switch v.kind {
	case boolKind:
		if v.truth {
			return 1, complaint{}
		}
		return 0, complaint{}
	case numberKind:
		if v.integral() {
			return saturated(v.text), complaint{}
		}
		return intOfFloat(v.text)
	case stringKind:
		text := strings.TrimSuffix(strings.TrimSpace(strings.ReplaceAll(v.text, "_", "")), ".0")
		if literal := strings.TrimPrefix(text, "+"); literal != "" && numberLiteral(literal) == literal &&
			(value{kind: numberKind, text: literal}).integral() {
			return saturated(literal), complaint{}
		}
		return 0, intParsing
	case nullKind, listKind, objectKind:
	}
	return 0, intType
}

func saturated(literal string) int64 {
	number, _ := strconv.ParseInt(literal, 10, 64) // out of range gives the nearest
	return number
}

func intOfFloat(literal string) (int64, complaint) {
	number, _ := strconv.ParseFloat(literal, 64) // out of range gives an infinity
	switch {
	case math.IsNaN(number) || math.IsInf(number, 0):
		return 0, intFinite
	case number != math.Trunc(number):
		return 0, intFraction
	case math.Abs(number) >= math.MaxInt64:
		return int64(math.Copysign(math.MaxInt64, number)), complaint{}
	}
	return int64(number), complaint{}
}

func asFloat(v value) (float64, complaint) {
	switch v.kind {
	case boolKind:
		number, _ := asInt(v)
		return float64(number), complaint{}
	case numberKind:
		number, _ := strconv.ParseFloat(v.text, 64) // out of range gives an infinity, as in Python
		return number, complaint{}
	case stringKind:
		number, err := strconv.ParseFloat(strings.TrimSpace(v.text), 64)
		if err != nil && !math.IsInf(number, 0) {
			return 0, floatParsing
		}
		return number, complaint{}
	case nullKind, listKind, objectKind:
	}
	return 0, floatType
}

func asBool(v value) (bool, complaint) {
	switch v.kind {
	case boolKind:
		return v.truth, complaint{}
	case numberKind:
		number, _ := strconv.ParseFloat(v.text, 64) // neither 0 nor 1 when out of range
		if number == 0 || number == 1 {
			return number == 1, complaint{}
		}
		return false, boolParsing
	case stringKind:
		switch strings.ToLower(v.text) {
		case "true", "1", "yes", "on", "t", "y":
			return true, complaint{}
		case "false", "0", "no", "off", "f", "n":
			return false, complaint{}
		}
		return false, boolParsing
	case nullKind, listKind, objectKind:
	}
	return false, boolType
}

func asString(v value) (string, complaint) {
	if v.kind != stringKind {
		return "", stringType
	}
	return v.text, complaint{}
}

// A form reads typed fields from a request's object and gathers what is wrong with them.
type form struct {
	body     value
	problems []problem
}

func (f *form) complain(c complaint, input value, place ...string) {
	if c.kind != "" {
		f.problems = append(f.problems, problem{kind: c.kind, place: place, message: c.message, input: input.repr()})
	}
}

// read gives the field to a reader unless it is absent, or null where null is allowed. It tells whether a value came
// out of it.
func read[T any](f *form, name string, nullable bool, as func(value) (T, complaint), into *T) bool {
	v, present := f.body.member(name)
	if !present || nullable && v.kind == nullKind {
		return false
	}
	result, c := as(v)
	if c.kind != "" {
		f.complain(c, v, name)
		return false
	}
	*into = result
	return true
}

func (f *form) integer(name string, nullable bool, into *int) bool {
	var number int64
	if !read(f, name, nullable, asInt, &number) {
		return false
	}
	*into = int(number)
	return true
}

func (f *form) float(name string, into *float64) { read(f, name, true, asFloat, into) }

func (f *form) boolean(name string, nullable bool, into *bool) { read(f, name, nullable, asBool, into) }

// ints reads a list of integers.
func (f *form) ints(name string, into *[]int) {
	v, present := f.body.member(name)
	if !present || v.kind == nullKind {
		return
	}
	if v.kind != listKind {
		f.complain(listType, v, name)
		return
	}
	for i, item := range v.items {
		number, c := asInt(item)
		f.complain(c, item, name, strconv.Itoa(i))
		*into = append(*into, int(number))
	}
}

// strings reads a string or a list of them.
func (f *form) strings(name string, into *[]string) {
	v, present := f.body.member(name)
	switch {
	case !present || v.kind == nullKind:
	case v.kind == stringKind:
		*into = []string{v.text}
	case v.kind == listKind:
		for i, item := range v.items {
			text, c := asString(item)
			f.complain(c, item, name, "list[str]", strconv.Itoa(i))
			*into = append(*into, text)
		}
	default:
		f.complain(stringType, v, name, "str")
		f.complain(listType, v, name, "list[str]")
	}
}
