package identity

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrBadModels is returned for a list of models that names none, or has an id that cannot be one.
var ErrBadModels = errors.New("the models of a key are one or more short ids")

// ModelList lists the models that a key may use, by their short ids: sorted, with a comma between them. An empty list allows
// every model.
type ModelList string

// NewModelList returns a list of at least one model. Ids that occur twice count once. The error is ErrBadModels.
func NewModelList(ids []string) (ModelList, error) {
	sorted := slices.Clone(ids)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	for _, id := range sorted {
		if id == "" || len(id) > maxModelID || strings.ContainsAny(id, ", \t\r\n") {
			return "", fmt.Errorf("%w, not %q", ErrBadModels, id)
		}
	}
	if len(sorted) == 0 {
		return "", ErrBadModels
	}
	return ModelList(strings.Join(sorted, ",")), nil
}

// maxModelID is the longest id in bytes. The configuration allows less.
const maxModelID = 200

// Any reports whether every model is allowed.
func (l ModelList) Any() bool { return l == "" }

// IDs returns the ids, sorted, or nil if every model is allowed.
func (l ModelList) IDs() []string {
	if l.Any() {
		return nil
	}
	return strings.Split(string(l), ",")
}

// Allows reports whether the model with this id may be used. It does not allocate.
func (l ModelList) Allows(id string) bool {
	if l.Any() {
		return true
	}
	for allowed := range strings.SplitSeq(string(l), ",") {
		if allowed == id {
			return true
		}
	}
	return false
}

// Within returns the ids that both lists allow, sorted; nil if both allow every model.
func (l ModelList) Within(limit ModelList) []string {
	if l.Any() {
		return limit.IDs()
	}
	return slices.DeleteFunc(l.IDs(), func(id string) bool { return !limit.Allows(id) })
}

// beyond returns the first model that l allows and limit does not, or an empty string.
func (l ModelList) beyond(limit ModelList) string {
	if limit.Any() {
		return ""
	}
	if l.Any() {
		return "any"
	}
	for _, id := range l.IDs() {
		if !limit.Allows(id) {
			return id
		}
	}
	return ""
}

// String lists the ids, or returns "any".
func (l ModelList) String() string {
	if l.Any() {
		return "any"
	}
	return strings.ReplaceAll(string(l), ",", ", ")
}
