package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"basegate/internal/loopback"
)

// Both proxies are configured like the Go ones: as many threads or workers as Go uses processors, kept connections to
// the upstream, no log, each event flushed at once, and no limit on requests per connection.

// nginxText is nginx's configuration. Its arguments: workers, connections per worker, a directory, the user directive,
// the upstream and the listen address. Without these temporary paths nginx opens those of its package, which belong to
// root.
const nginxText = `daemon off;
worker_processes %[1]d;
pid %[3]s/nginx.pid;
error_log stderr error;
%[4]s
events { worker_connections %[2]d; }
http {
  access_log off;
  client_body_temp_path %[3]s/body;
  proxy_temp_path %[3]s/proxy;
  fastcgi_temp_path %[3]s/fastcgi;
  uwsgi_temp_path %[3]s/uwsgi;
  scgi_temp_path %[3]s/scgi;
  client_max_body_size 0;
  keepalive_requests 1000000000;
  upstream vllm {
    server %[5]s;
    keepalive 1024;
    keepalive_requests 1000000000;
    keepalive_timeout 4s;
  }
  server {
    listen %[6]s backlog=4096;
    location / {
      proxy_pass http://vllm;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_read_timeout 10m;
    }
  }
}
`

// startNginx runs nginx in the foreground. As root it needs a user directive: otherwise its workers drop root's rights
// and cannot access the testbed's directory.
func (b *testbed) startNginx(ctx context.Context) (target, error) {
	address, err := loopback.FreeAddress(ctx)
	if err != nil {
		return target{}, err
	}
	user := ""
	if os.Geteuid() == 0 {
		user = "user root root;"
	}
	path := filepath.Join(b.dir, "nginx.conf")
	text := fmt.Sprintf(nginxText, runtime.GOMAXPROCS(0), b.programs.descriptors, b.dir, user, b.upstream, address)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return target{}, fmt.Errorf("write configuration: %w", err)
	}
	return b.start(ctx, nginx, address, "/health", b.programs.competitors[nginx].path, "-p", b.dir, "-c", path)
}

// haproxyText is HAProxy's configuration. Its arguments: connections, threads, the listen address and the upstream.
// HAProxy uses two descriptors per connection and some more.
const haproxyText = `global
  maxconn %d
  nbthread %d
defaults
  mode http
  option http-no-delay
  http-reuse always
  timeout connect 5s
  timeout client 10m
  timeout server 10m
frontend bench
  bind %s backlog 4096
  default_backend vllm
backend vllm
  server vllm %s
`

func (b *testbed) startHAProxy(ctx context.Context) (target, error) {
	address, err := loopback.FreeAddress(ctx)
	if err != nil {
		return target{}, err
	}
	path := filepath.Join(b.dir, "haproxy.cfg")
	text := fmt.Sprintf(haproxyText, maxStreams(b.programs.descriptors), runtime.GOMAXPROCS(0), address, b.upstream)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return target{}, fmt.Errorf("write configuration: %w", err)
	}
	return b.start(ctx, haproxy, address, "/health", b.programs.competitors[haproxy].path, "-db", "-f", path)
}
