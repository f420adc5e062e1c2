package usage

import (
	"encoding/json"
	"fmt"
	"time"
)

// Attempt is one try of a request at one backend.
type Attempt struct {
	Backend string
	Class   string        // of the outcome, as in the metrics: success, or a class of failures
	Status  int           // of the backend's response; 0 if there was none
	Start   time.Duration // after the request's arrival
	Took    time.Duration // until the failure, the whole response or the end of the stream
}

// MaxAttempts limits the attempts that are recorded of a request.
const MaxAttempts = 16

// storedAttempt is the encoding of an Attempt in the column attempts.
type storedAttempt struct {
	Backend string `json:"backend"`
	Class   string `json:"class"`
	Status  int    `json:"status,omitzero"`
	StartUS int64  `json:"start_us"`
	TookUS  int64  `json:"took_us"`
}

// storedDetails is the encoding of attempts with a chain id. Without one, the attempts alone are stored.
type storedDetails struct {
	ChainID  string          `json:"chain_id"`
	Attempts []storedAttempt `json:"attempts"`
}

// EncodeDetails returns the form in which attempts, at most MaxAttempts of them, and a chain id are stored; empty if there
// is neither.
func EncodeDetails(all []Attempt, chainID string) string {
	if len(all) == 0 && chainID == "" {
		return ""
	}
	stored := make([]storedAttempt, min(len(all), MaxAttempts))
	for i := range stored {
		a := all[i]
		stored[i] = storedAttempt{a.Backend, a.Class, a.Status, a.Start.Microseconds(), a.Took.Microseconds()}
	}
	var details any = stored
	if chainID != "" {
		details = storedDetails{chainID, stored}
	}
	text, err := json.Marshal(details)
	if err != nil { // impossible: strings and integers
		panic("encode attempts: " + err.Error())
	}
	return string(text)
}

// decodeDetails returns what EncodeDetails has encoded.
func decodeDetails(text string) (all []Attempt, chainID string, err error) {
	if text == "" {
		return nil, "", nil
	}
	var stored storedDetails
	if text[0] == '{' {
		err = json.Unmarshal([]byte(text), &stored)
	} else {
		err = json.Unmarshal([]byte(text), &stored.Attempts)
	}
	if err != nil {
		return nil, "", fmt.Errorf("decode attempts: %w", err)
	}
	all = make([]Attempt, len(stored.Attempts))
	for i, s := range stored.Attempts {
		all[i] = Attempt{s.Backend, s.Class, s.Status, micros(s.StartUS), micros(s.TookUS)}
	}
	return all, stored.ChainID, nil
}
