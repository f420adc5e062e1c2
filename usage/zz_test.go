package usage_test

import (
	"os"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/databasetest"
)

func TestZZMigrate(t *testing.T) {
	db, err := database.Open(t.Context(), database.Settings{URL: os.Getenv("ZZ_URL")}, zap.NewNop())
	must(t, err)
	defer db.Close()
	databasetest.CreatePartitions(t, db, time.Now().AddDate(0, -4, 0), time.Now())
}
