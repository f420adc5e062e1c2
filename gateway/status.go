package gateway

import (
	"context"
	"os"
	"time"

	"basegate/fleet"
)

// Status is the state of a running gateway, as the admin listener's /status and `basegate gateway status` report it.
type Status struct {
	Address       string         `json:"address"`
	AdminAddress  string         `json:"admin_address"`
	TLS           bool           `json:"tls"`
	Version       string         `json:"version"`
	PID           int            `json:"pid"` // in a container, its own numbering
	Since         time.Time      `json:"since"`
	Draining      bool           `json:"draining"`
	InFlight      int64          `json:"in_flight"`
	Configuration ReloadStatus   `json:"configuration"`
	Certificate   *Certificate   `json:"certificate"` // null without TLS
	Database      DatabaseStatus `json:"database"`
	Log           LogStatus      `json:"log"`

	Models []fleet.ModelSnapshot `json:"models"`
}

// ReloadStatus says which version of something that is read from files is in force.
type ReloadStatus struct {
	ReadAt  time.Time `json:"read_at"`           // of the version in force
	Refused *Refusal  `json:"refused,omitempty"` // if the last reload failed
}

// Refusal is a failed reload.
type Refusal struct {
	At    time.Time `json:"at"`
	Error string    `json:"error"`
}

// Certificate is the TLS certificate in force.
type Certificate struct {
	ReloadStatus
	ExpiresAt time.Time `json:"expires_at"`
}

// DatabaseStatus is the state of the database.
type DatabaseStatus struct {
	Path  string `json:"path"`            // of the file, or the URL of a PostgreSQL database without its password
	Error string `json:"error,omitempty"` // why it does not answer
}

// LogStatus is the state of the log's writer.
type LogStatus struct {
	Failing bool   `json:"failing"`
	Dropped uint64 `json:"dropped_lines"`
}

func (g *Gateway) status(ctx context.Context) *Status {
	s := &Status{
		Address: g.Addr().String(), AdminAddress: g.AdminAddr().String(), TLS: g.certificate != nil,
		Version: g.version, PID: os.Getpid(), Since: g.startedAt,
		Draining: g.proxy.Draining(), InFlight: g.proxy.InFlight(),
		Configuration: g.configState.status(),
		Database:      DatabaseStatus{Path: g.booted.Database.Location()},
		Log:           LogStatus{Failing: g.logWriter.Failing(), Dropped: g.logWriter.Dropped()},
		Models:        g.fleet.Snapshot(),
	}
	if g.certificate != nil {
		s.Certificate = &Certificate{
			ReloadStatus: g.certificate.state.status(),
			ExpiresAt:    g.certificate.current.Load().Leaf.NotAfter.UTC(),
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := g.checkDatabase(ctx); err != nil {
		s.Database.Error = err.Error()
	}
	return s
}
