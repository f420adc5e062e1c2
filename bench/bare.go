package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// bareCommand is the argument that makes this program the proxy to compare with.
const bareCommand = "reverseproxy"

// serveBare serves an httputil.ReverseProxy that does nothing of its own, until ctx ends. It keeps as many idle
// connections as the gateway does; with the two a host of net/http's default it would be measured dialling.
func serveBare(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(bareCommand, flag.ExitOnError)
	listen := flags.String("listen", "127.0.0.1:0", "host:port to listen on")
	target := flags.String("target", "", "the URL to forward to")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("read flags: %w", err)
	}
	to, err := url.Parse(*target)
	if err != nil {
		return fmt.Errorf("read target: %w", err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true},
	}
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // the process ends either way
	if err := server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}
