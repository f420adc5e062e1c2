package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"basegate/fleet"
	"basegate/gateway"
	"basegate/gateway/config"
)

func newGateway() *cobra.Command {
	return newGroup("gateway", "Show the status of the running gateway, and list those on one database", newGatewayStatus(), newGatewayList())
}

// The errors of a gateway that runs, but not with what its files say. They are printed after its status.
var (
	errConfigRefused      = errors.New("the last reload of the configuration was refused; basegate check lists the mistakes")
	errCertificateRefused = errors.New("the files of server.tls were refused; the certificate that was read before is in force")
)

func newGatewayStatus() *cobra.Command {
	var asJSON bool
	cmd := newCommand("status", "Show what the running gateway says of itself",
		"Show what the running gateway says of itself: since when it runs, which configuration and certificate are in\n"+
			"force, its database, its requests in flight and the breakers of its backends. The gateway is the one that uses\n"+
			"the database, or else the one at server.admin_listen. The exit code is 1 if no gateway answers, or if it refused\n"+
			"the last reload of its configuration or certificate. Mistakes in the configuration do not matter.",
		func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.LoadPartial(configPath(cmd))
			if err != nil {
				return err
			}
			s, err := fetchStatus(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(cmd, s)
			} else {
				err = printStatus(cmd, s)
			}
			switch {
			case err != nil:
				return err
			case s.Configuration.Refused != nil:
				return errConfigRefused
			case s.Certificate != nil && s.Certificate.Refused != nil:
				return errCertificateRefused
			}
			return nil
		})
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func printStatus(cmd *cobra.Command, s *gateway.Status) error {
	lines := statusLines(s)
	if err := printTable(cmd, lines[0], lines[1:]); err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout())
	return printBreakers(cmd, s.Models)
}

// statusLines returns the names and values of all but the backends.
func statusLines(s *gateway.Status) [][]string {
	address := s.Address
	if s.TLS {
		address += " (TLS)"
	}
	state := "running"
	if s.Draining {
		state = "draining"
	}
	lines := [][]string{
		{"address", address},
		{"admin address", s.AdminAddress},
		{"version", s.Version},
		{"state", fmt.Sprintf("%s, since %s, process %d", state, formatSecond(s.Since), s.PID)},
	}
	lines = append(lines, reloadLines("configuration", "read at "+formatSecond(s.Configuration.ReadAt), s.Configuration)...)
	if c := s.Certificate; c != nil {
		text := "read at " + formatSecond(c.ReadAt) + ", " + expiry(c.ExpiresAt)
		lines = append(lines, reloadLines("certificate", text, c.ReloadStatus)...)
	}
	db := s.Database.Path + ", answers"
	if s.Database.Error != "" {
		db = s.Database.Path + ", DOES NOT ANSWER: " + s.Database.Error
	}
	lines = append(lines, []string{"database", db}, []string{"in flight", count(s.InFlight, "request")})
	if s.Log.Dropped > 0 {
		text := fmt.Sprintf("%d lines were lost", s.Log.Dropped)
		if s.Log.Failing {
			text += ", and more are being lost"
		}
		lines = append(lines, []string{"log", text})
	}
	return lines
}

// reloadLines returns the line of what is in force, and those of the reload that was refused.
func reloadLines(name, inForce string, s gateway.ReloadStatus) [][]string {
	lines := [][]string{{name, inForce}}
	if s.Refused == nil {
		return lines
	}
	lines = append(lines, []string{"", "REFUSED at " + formatSecond(s.Refused.At) + ":"})
	for mistake := range strings.Lines(s.Refused.Error) {
		lines = append(lines, []string{"", strings.TrimSpace(mistake)})
	}
	return lines
}

// expiry says when a certificate expires.
func expiry(at time.Time) string {
	const day = 24 * time.Hour
	left := time.Until(at)
	if left <= 0 {
		return "EXPIRED at " + formatSecond(at)
	}
	return fmt.Sprintf("expires at %s, in %s", formatSecond(at), count(int64(left/day), "day"))
}

func printBreakers(cmd *cobra.Command, models []fleet.ModelSnapshot) error {
	var rows [][]string
	for _, m := range models {
		for _, b := range m.Backends {
			rows = append(rows, []string{m.ID, b.Name, string(b.State), b.Breaker, strconv.FormatInt(b.InFlight, 10), dash(b.Reason)})
		}
	}
	return printTable(cmd, []string{"MODEL", "BACKEND", "STATE", "BREAKER", "IN FLIGHT", "REASON"}, rows)
}

func formatSecond(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }
