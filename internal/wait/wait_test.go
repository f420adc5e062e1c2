package wait_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"basegate/internal/wait"
)

func TestForEndsWithItsTimeOrItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !wait.For(t.Context(), time.Second) || time.Since(began) != time.Second {
			t.Errorf("waited %v, want a second and true", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if wait.For(ctx, time.Hour) || time.Since(began) != time.Second {
			t.Errorf("waited %v, want a second and false", time.Since(began))
		}
	})
}
