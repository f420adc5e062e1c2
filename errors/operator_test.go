package errors_test

import (
	"regexp"
	"testing"

	apierr "basegate/errors"
)

// operatorsOwn matches what only an operator has: commands, files and settings of the gateway, and how vLLM is run.
var operatorsOwn = regexp.MustCompile(`(?i)basegate |config\.yaml|\bapi_key\b|--\w|launch|vllm serve|docker|systemctl|/(etc|var|home|root|tmp)/|` +
	`https?://|\d+\.\d+\.\d+\.\d+|secret|(server|limits|upstream|models|database)(\[\])?\.[a-z]+_`)

func TestNoMessageTellsWhatTheOperatorRuns(t *testing.T) {
	for _, text := range []string{"run basegate check", "see config.yaml", "server.max_body_bytes", "start it with --served-model-name m", errSecret.Error()} {
		if !operatorsOwn.MatchString(text) {
			t.Fatalf("the test does not find %q", text)
		}
	}
	for _, x := range examples() {
		if found := operatorsOwn.FindString(apierr.From(x.err).Message); found != "" {
			t.Errorf("%s: got %q in the message %q", x.name, found, apierr.From(x.err).Message)
		}
	}
}
