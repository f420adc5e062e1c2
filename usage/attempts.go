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

// storedAttempt is the encoding of an Attempt in the table request_details.
type storedAttempt struct {
	Backend string `json:"backend"`
	Class   string `json:"class"`
	Status  int    `json:"status,omitzero"`
	StartUS int64  `json:"start_us"`
	TookUS  int64  `json:"took_us"`
}

// EncodeAttempts returns the form in which attempts are stored, at most MaxAttempts of them; empty if there are none.
func EncodeAttempts(all []Attempt) string {
	if len(all) == 0 {
		return ""
	}
	stored := make([]storedAttempt, min(len(all), MaxAttempts))
	for i := range stored {
		a := all[i]
		stored[i] = storedAttempt{a.Backend, a.Class, a.Status, a.Start.Microseconds(), a.Took.Microseconds()}
	}
	text, err := json.Marshal(stored)
	if err != nil { // impossible: strings and integers
		panic("encode attempts: " + err.Error())
	}
	return string(text)
}

func decodeAttempts(text string) ([]Attempt, error) {
	if text == "" {
		return nil, nil
	}
	var stored []storedAttempt
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return nil, fmt.Errorf("decode attempts: %w", err)
	}
	all := make([]Attempt, len(stored))
	for i, s := range stored {
		all[i] = Attempt{
			s.Backend, s.Class, s.Status,
			time.Duration(s.StartUS) * time.Microsecond, time.Duration(s.TookUS) * time.Microsecond,
		}
	}
	return all, nil
}
