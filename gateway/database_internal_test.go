package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/database/postgres"
)

// errRefused is the error of a server that does not listen.
var errRefused = fmt.Errorf("open database: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})

func TestStartWaitsForTheDatabase(t *testing.T) {
	errConfig := errors.New("the password is wrong")
	for name, test := range map[string]struct {
		errs   []error // of the attempts, one a second; the last one stays
		waited time.Duration
		want   error
		lines  int // of the log
	}{
		"it answers at once":                 {errs: []error{nil}},
		"it answers later":                   {errs: []error{errRefused, errRefused, postgres.ErrStandby, nil}, waited: 3 * time.Second, lines: 2},
		"it never answers":                   {errs: []error{errRefused}, waited: databaseWait, want: errRefused, lines: 6},
		"it stays a standby":                 {errs: []error{errRefused, postgres.ErrStandby}, waited: databaseWait, want: postgres.ErrStandby, lines: 6},
		"it refuses the gateway":             {errs: []error{errConfig}, want: errConfig},
		"it answers and refuses the gateway": {errs: []error{errRefused, errConfig}, waited: time.Second, want: errConfig, lines: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				core, logged := observer.New(zap.DebugLevel)
				attempt, began := 0, time.Now()
				err := waitForDatabase(t.Context(), zap.New(core), func() error {
					err := test.errs[min(attempt, len(test.errs)-1)]
					attempt++
					return err
				})
				if !errors.Is(err, test.want) || time.Since(began) != test.waited || logged.Len() != test.lines {
					t.Errorf("got %v after %v with %d lines in the log, want %v after %v with %d", err, time.Since(began), logged.Len(),
						test.want, test.waited, test.lines)
				}
				if test.waited == databaseWait && !strings.Contains(err.Error(), "waited for it for 1m0s") {
					t.Errorf("got %v, want how long it has waited", err)
				}
			})
		})
	}
}

func TestWaitForTheDatabaseEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errStop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(1500*time.Millisecond, func() { cancel(errStop) })
		began := time.Now()
		err := waitForDatabase(ctx, zap.NewNop(), func() error { return errRefused })
		if !errors.Is(err, errStop) || time.Since(began) != 1500*time.Millisecond {
			t.Errorf("got %v after %v, want the cause at once", err, time.Since(began))
		}
	})
}
