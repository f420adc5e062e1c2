package batch

import (
	"testing"

	"go.uber.org/goleak"

	"basegate/internal/databasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(databasetest.Main{M: m}) }
