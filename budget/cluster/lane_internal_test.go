package cluster

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
)

// A call to a database that is cut off fails only after callTimeout.
func TestCutOffCountsFromWhenTheFirstFailedCallWasSent(t *testing.T) {
	s := Settings{CutOff: time.Hour}
	l := newLane(&epoch{Ledger: &Ledger{log: zap.NewNop(), settings: s}}, 0)
	defer l.lose()
	lost := l.lost
	l.recordOutage(errors.New("no reply"), time.Now().Add(callTimeout-s.CutOff))
	if l.cutOff(); lost.Err() != nil {
		t.Fatal("the requests are ended before the limit")
	}
	l.unanswered = l.unanswered.Add(-callTimeout - time.Second)
	l.recordOutage(errors.New("no reply"), time.Now())
	if l.cutOff(); lost.Err() == nil {
		t.Error("the requests run on beyond the limit")
	}
}
