package parity

import (
	"fmt"
	"net/http"

	"github.com/tidwall/gjson"
)

// acceptsError decides whether the gateway's error is the documented form of a backend's error, and describes it.
func acceptsError(direct, gateway *observation) (remark string, ok bool) {
	e := gateway.errorObject()
	if problem := checkErrorShape(e); problem != "" {
		return problem, false
	}
	code, message := e.Get("code").Str, direct.errorObject().Get("message").Str
	refused := gateway.status >= http.StatusBadRequest && gateway.status < http.StatusInternalServerError
	switch {
	case gateway.status == http.StatusOK && direct.status != http.StatusOK:
		return fmt.Sprintf("the backend fails with status %d, the gateway within its stream", direct.status), false
	case direct.status >= http.StatusBadRequest && direct.status < http.StatusInternalServerError && !refused:
		return fmt.Sprintf("the backend refuses it with %d, the gateway fails with %d %s", direct.status, gateway.status, code), false
	case refused && e.Get("upstream_status").Exists() && message == "":
		return "the backend's error has no message, the gateway's says so", true
	case refused && e.Get("upstream_status").Exists() && e.Get("message").Str != message:
		return "the gateway's error has another message than the backend's", false
	case direct.status == http.StatusOK:
		return "the backend sends an error in its stream: " + code, true
	}
	return fmt.Sprintf("the backend refuses it with %d: %s", direct.status, code), true
}

// checkErrorShape returns what is wrong with an error of the gateway; "" if nothing is.
func checkErrorShape(e gjson.Result) string {
	for _, name := range []string{"code", "message", "type", "request_id"} {
		if e.Get(name).Str == "" {
			return "the gateway's error has no " + name
		}
	}
	if !e.Get("param").Exists() {
		return "the gateway's error has no param"
	}
	return ""
}

// refuses reports whether the response is the gateway's 400 for invalid fields; param may be empty for any field.
func refuses(o *observation, param string) bool {
	e := o.errorObject()
	return o.status == http.StatusBadRequest && e.Get("code").Str == "invalid_request" && checkErrorShape(e) == "" &&
		(param == "" || e.Get("param").Str == param)
}
