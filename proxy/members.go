package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	apierr "basegate/errors"
	"basegate/internal/suggest"
	"basegate/validate"
)

// Members returns the members of a small body in their order. It must be one JSON object without repeated names at any depth, and
// nest no deeper than a completion's.
func Members(body []byte) ([]Member, error) {
	var object map[string]jsontext.Value
	err := json.Unmarshal(body, &object)
	wrong, _ := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		name := wrong.JSONPointer.LastToken()
		return nil, apierr.InvalidField(name, "the name \""+apierr.Clip(name)+"\" stands twice in one object; send it once")
	case wrong != nil:
		return nil, apierr.MalformedJSON(wrong.ByteOffset, "the body is not one JSON object: it is malformed, or something is behind it")
	case err != nil || object == nil:
		return nil, apierr.MalformedJSON(0, "the body is not a JSON object")
	}
	if err := validate.CheckDepth(body); err != nil {
		return nil, err
	}
	return membersOf(gjson.ParseBytes(body)), nil
}

// UnknownMember returns the error for a member, or a field of a form, that is none of the known ones.
func UnknownMember(name string, known []string) error {
	return apierr.UnknownField(name, suggest.Field(name, slices.Values(known)))
}

func membersOf(object gjson.Result) (members []Member) {
	object.ForEach(func(name, value gjson.Result) bool {
		members = append(members, Member{value, name.Str})
		return true
	})
	return members
}

// List is a page of objects.
type List[T any] struct {
	Object  string  `json:"object"`
	Data    []T     `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

// NewList returns a page of objects with their ids.
func NewList[T any](data []T, id func(T) string, hasMore bool) List[T] {
	l := List[T]{Object: "list", Data: data, HasMore: hasMore}
	if len(data) > 0 {
		first, last := id(data[0]), id(data[len(data)-1])
		l.FirstID, l.LastID = &first, &last
	}
	return l
}

// OrNull returns nil, which is JSON's null, for the zero value.
func OrNull[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// PageLimit returns the parameter limit of a query: how many objects a page has at the most.
func PageLimit(q map[string]string, usual, most int) (int, error) {
	text, given := q["limit"]
	if !given {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, apierr.InvalidField("limit", fmt.Sprintf("limit: got %s; expected an integer from 1 to %d", strconv.Quote(apierr.Clip(text)), most))
	}
	return n, nil
}

// OnlyText returns an id or a word that a client names. What PostgreSQL would refuse as text is replaced by a text that names
// nothing.
func OnlyText(s string) string {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return "?"
	}
	return s
}

// Member is a member of an object, by its name in error messages.
type Member struct {
	gjson.Result

	Name string
}

// Invalid returns the error for a value that is not what it should be.
func (m Member) Invalid(format string, args ...any) error {
	return apierr.InvalidField(m.Name, m.Name+": "+fmt.Sprintf(format, args...))
}

// Text returns the value of a string.
func (m Member) Text() (string, error) {
	if m.Type != gjson.String {
		return "", m.Invalid("expected a string")
	}
	if m.Str == "" {
		return "", m.Invalid("got an empty string")
	}
	return m.Str, nil
}
