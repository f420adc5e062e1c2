package parity

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// equal reports whether a client cannot tell two normalized responses apart. Events of different choices may come in any
// order.
func equal(a, b observation) bool {
	if a.status != b.status || a.contentType != b.contentType || a.complete() != b.complete() {
		return false
	}
	return a.body == b.body || a.isStream() && a.groupChoices().body == b.groupChoices().body
}

// acceptsError decides whether the gateway's error is the documented form of a backend's error, and describes it.
func acceptsError(direct, gateway observation) (remark string, ok bool) {
	e := gateway.errorObject()
	if problem := checkErrorShape(e); problem != "" {
		return problem, false
	}
	code := e.Get("code").Str
	refused := gateway.status >= http.StatusBadRequest && gateway.status < http.StatusInternalServerError
	switch {
	case gateway.status == http.StatusOK && direct.status != http.StatusOK:
		return fmt.Sprintf("the backend fails with status %d, the gateway within its stream", direct.status), false
	case direct.status >= http.StatusBadRequest && direct.status < http.StatusInternalServerError && !refused:
		return fmt.Sprintf("the backend refuses it with %d, the gateway fails with %d %s", direct.status, gateway.status, code), false
	case refused && e.Get("upstream_status").Exists() && direct.errorObject().Get("message").Str == "" && e.Get("message").Str != "":
		return "the backend's error has no message, the gateway's says so", true
	case refused && e.Get("upstream_status").Exists() && e.Get("message").Str != direct.errorObject().Get("message").Str:
		return "the gateway's error has another message than the backend's", false
	}
	return errorStatus(direct) + ": " + code, true
}

func errorStatus(o observation) string {
	if o.status == http.StatusOK {
		return "the backend sends an error in its stream"
	}
	return "the backend refuses it with " + strconv.Itoa(o.status)
}

// checkErrorShape returns what is wrong with an error of the gateway; "" if nothing is.
func checkErrorShape(e gjson.Result) string {
	for _, name := range []string{"code", "message", "type", "request_id"} {
		if v := e.Get(name); v.Type != gjson.String || v.Str == "" {
			return "the gateway's error has no " + name
		}
	}
	if !e.Get("param").Exists() {
		return "the gateway's error has no param"
	}
	return ""
}

// refuses reports whether the response is the gateway's 400 for invalid fields; param may be empty for any field.
func refuses(o observation, param string) bool {
	e := o.errorObject()
	return o.status == http.StatusBadRequest && e.Get("code").Str == "invalid_request" && checkErrorShape(e) == "" &&
		(param == "" || e.Get("param").Str == param)
}

// difference describes where the gateway's response differs from a backend's. It shows no text of either.
func difference(direct, gateway observation) string {
	switch {
	case direct.status != gateway.status:
		return fmt.Sprintf("status %d, directly %d", gateway.status, direct.status) + describeCode(gateway)
	case gateway.failed() && !direct.failed():
		return "an error, directly none" + describeCode(gateway)
	case direct.contentType != gateway.contentType:
		return fmt.Sprintf("Content-Type %s, directly %s", gateway.contentType, direct.contentType)
	case direct.complete() != gateway.complete():
		return "the stream does not end with [DONE], directly it does"
	case !direct.isStream():
		return firstDifference("", gjson.Parse(direct.body), gjson.Parse(gateway.body))
	}
	a, b := direct.groupChoices(), gateway.groupChoices()
	directly, through := a.events(), b.events()
	for i := range min(len(directly), len(through)) {
		if directly[i] != through[i] {
			where := firstDifference("", gjson.Parse(eventData(directly[i])), gjson.Parse(eventData(through[i])))
			return fmt.Sprintf("event %d of %d: %s", i+1, len(directly), where)
		}
	}
	return fmt.Sprintf("%d events, directly %d", len(through), len(directly))
}

func describeCode(o observation) string {
	if code := o.errorObject().Get("code").Str; code != "" {
		return " (" + code + ")"
	}
	return ""
}

// firstDifference returns the path of the first difference between two JSON values.
func firstDifference(path string, direct, gateway gjson.Result) string {
	name := strings.TrimPrefix(path, ".")
	if name == "" {
		name = "the body"
	}
	switch {
	case direct.Type != gateway.Type || direct.IsArray() != gateway.IsArray():
		return name + " has another type"
	case direct.IsObject():
		return firstMemberDifference(path, direct, gateway)
	case direct.IsArray():
		a, b := direct.Array(), gateway.Array()
		for i := range min(len(a), len(b)) {
			if a[i].Raw != b[i].Raw {
				return firstDifference(path+"."+strconv.Itoa(i), a[i], b[i])
			}
		}
		if len(a) != len(b) {
			return fmt.Sprintf("%s has %d elements, directly %d", name, len(b), len(a))
		}
		return name + " is spelled in other bytes"
	case direct.Value() == gateway.Value() && direct.Raw != gateway.Raw:
		return name + " is spelled in other bytes"
	}
	return name + " has another value"
}

func firstMemberDifference(path string, direct, gateway gjson.Result) string {
	directly, through := members(direct), members(gateway)
	for _, m := range directly {
		other := gateway.Get(gjson.Escape(m))
		if label := strings.TrimPrefix(path+"."+label(path, m), "."); !other.Exists() {
			return label + " is missing"
		} else if value := direct.Get(gjson.Escape(m)); value.Raw != other.Raw {
			return firstDifference("."+label, value, other)
		}
	}
	for _, m := range through {
		if !slices.Contains(directly, m) {
			return strings.TrimPrefix(path+"."+label(path, m), ".") + " is additional"
		}
	}
	return strings.TrimPrefix(path, ".") + " has its members in another order or spelled in other bytes"
}

// label returns a member's name for a report. Names within top_logprobs and prompt_logprobs are texts of tokens.
func label(path, member string) string {
	if strings.Contains(path, "logprobs.") || strings.Contains(path, "logprobs[") {
		return "TOKEN"
	}
	return member
}

func members(object gjson.Result) (names []string) {
	object.ForEach(func(name, _ gjson.Result) bool {
		names = append(names, name.Str)
		return true
	})
	return names
}

// shape returns the sorted paths of all members of a response, without indexes. Two responses of a backend that samples
// at random differ in values, and not in shape.
func shape(o observation) []string {
	paths := map[string]bool{}
	documents := []string{o.body}
	if o.isStream() {
		documents = o.events()
		for i, event := range documents {
			documents[i] = eventData(event)
		}
	}
	for _, text := range documents {
		addPaths(paths, "", gjson.Parse(text))
	}
	sorted := make([]string, 0, len(paths))
	for path := range paths {
		sorted = append(sorted, path)
	}
	slices.Sort(sorted)
	return sorted
}

func addPaths(paths map[string]bool, path string, v gjson.Result) {
	if !v.IsObject() && !v.IsArray() {
		paths[path] = true
		return
	}
	v.ForEach(func(name, value gjson.Result) bool {
		next := path + "[]"
		if v.IsObject() {
			next = path + "." + label(path, name.Str)
		}
		addPaths(paths, next, value)
		return true
	})
}
