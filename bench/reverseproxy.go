package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// reverseProxyCommand is the argument that makes this program the proxy that all ratios refer to.
const reverseProxyCommand = "reverseproxy"

// serveReverseProxy serves a plain httputil.ReverseProxy until ctx ends. It keeps as many idle connections as the
// gateway does: with net/http's default of two per host the benchmark would measure dialling.
func serveReverseProxy(ctx context.Context, f childFlags) error {
	to := &url.URL{Scheme: "http", Host: f.target}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true},
	}
	return serveUntilDone(ctx, f.listen, &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute})
}

// serveUntilDone serves on a host:port until ctx ends.
func serveUntilDone(ctx context.Context, listen string, server *http.Server) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // the process ends either way
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}
