package fleet_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/poll"
)

// What vLLM answers to messages for a model without a template.
const (
	noTemplate = `{"error":{"message":"As of transformers v4.44, default chat template is no longer allowed, ` +
		`so you must provide a chat template if the tokenizer does not define one.","type":"BadRequestError","code":400}}`
	noTemplateOfRust = `{"error":{"message":"tokenize failed: chat template is required but none was configured",` +
		`"type":"InternalServerError","param":null,"code":500}}`
)

// startChatServer starts a vLLM server that counts messages once it has a template, and refuses them before.
func startChatServer(t *testing.T, hasTemplate *atomic.Bool, refusal string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"org/M","max_model_len":8192}]}`)
		case "/tokenize":
			body, _ := io.ReadAll(r.Body)
			if strings.Contains(string(body), `"messages"`) && !hasTemplate.Load() {
				w.WriteHeader(int(gjson.Get(refusal, "error.code").Int()))
				io.WriteString(w, refusal)
				return
			}
			io.WriteString(w, `{"count":7}`)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestModelDoesNotChatWhileNoBackendHasATemplate(t *testing.T) {
	with, without := new(atomic.Bool), new(atomic.Bool)
	with.Store(true)
	m := modelConfig(t, "m", startChatServer(t, without, noTemplateOfRust))
	m.Chat = true
	two := modelConfig(t, "two", startChatServer(t, without, noTemplate), startChatServer(t, with, noTemplate))
	two.Chat = true
	base := modelConfig(t, "base", startChatServer(t, without, noTemplate))

	core, logged := observer.New(zap.InfoLevel)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	f := fleet.New([]config.Model{m, two, base}, settings, transport, nil, zap.New(core))
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if getModel(t, f, "m").Chat() || !getModel(t, f, "two").Chat() || getModel(t, f, "base").Chat() {
		t.Errorf("m chats: %t, two: %t, base: %t; want false, true, false",
			getModel(t, f, "m").Chat(), getModel(t, f, "two").Chat(), getModel(t, f, "base").Chat())
	}
	for id, want := range map[string]string{"m": "[1]", "two": "[1 0]", "base": "[0]"} {
		var found []int
		for _, b := range getModel(t, f, id).Backends() {
			found = append(found, len(b.ChatFindings()))
		}
		if got := fmt.Sprint(found); got != want {
			t.Errorf("%s: the backends have %s findings about their template, want %s", id, got, want)
		}
	}
	if got := logged.FilterMessageSnippet("has no chat template").Len(); got != 2 {
		t.Errorf("got %d log lines about a missing template, want one for each of the two backends:\n%v", got, logged.All())
	}

	without.Store(true)
	poll.Until(t, "the model chats", func() bool { return getModel(t, f, "m").Chat() })
	poll.Until(t, "the log says so", func() bool { return logged.FilterMessage("the backend has a chat template again").Len() == 2 })
	if got := logged.FilterMessageSnippet("has no chat template").Len(); got != 2 {
		t.Errorf("got %d log lines about a missing template, want each once", got)
	}
}
