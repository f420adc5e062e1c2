package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"basegate/config"
)

// liveTimeout bounds the question of check --live, under the 5 s that the image's health check has.
const liveTimeout = 4 * time.Second

var errAnyPort = errors.New("server.listen has port 0, so nobody knows where the gateway listens")

// checkLive asks the running gateway for /healthz, at the address that the configuration has it listen on: what a
// container without a shell has in place of curl. It opens no database and asks no backend.
func checkLive(cmd *cobra.Command, cfg *config.Config) error {
	url, err := liveURL(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), liveTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	//nolint:gosec // the certificate is for the public name, and this asks the machine itself whether it lives
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("ask the gateway: %w", err)
	}
	if err := answer.Body.Close(); err != nil {
		return fmt.Errorf("close answer: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %d", url, answer.StatusCode)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), "live:", url)
	return err
}

// liveURL is where the gateway of this machine answers. One that listens on every address does so on loopback.
func liveURL(cfg *config.Config) (string, error) {
	host, port, err := net.SplitHostPort(cfg.Server.Listen)
	if err != nil {
		return "", fmt.Errorf("read server.listen: %w", err)
	}
	if port == "0" {
		return "", errAnyPort
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "localhost"
	}
	scheme := "http"
	if cfg.Server.TLS.Cert != "" {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/healthz", nil
}
