package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// Both proxies get what the Go ones have: as many threads or workers as Go takes processors, connections to the
// upstream that are kept, no log, and every event passed on at once. Neither closes a connection after so many requests.

// nginxText wants workers, connections of a worker, a folder, the user, the upstream and the address to listen on.
// Without folders of its own nginx opens those of its package, which belong to root.
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

// startNginx runs nginx in the foreground. Its workers would give up root's rights, and with them the stage's folder.
func (s *testbed) startNginx(ctx context.Context) (target, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return target{}, err
	}
	user := ""
	if os.Geteuid() == 0 {
		user = "user root root;"
	}
	path := filepath.Join(s.dir, "nginx.conf")
	text := fmt.Sprintf(nginxText, runtime.GOMAXPROCS(0), s.programs.descriptors, s.dir, user, s.upstream, address)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return target{}, fmt.Errorf("write configuration: %w", err)
	}
	return s.start(ctx, nginx, address, "/health", s.programs.competitors[nginx].path, "-p", s.dir, "-c", path)
}

// haproxyText wants connections, threads, the address to listen on and the upstream. HAProxy takes two descriptors a
// connection and some of its own.
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

func (s *testbed) startHAProxy(ctx context.Context) (target, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return target{}, err
	}
	path := filepath.Join(s.dir, "haproxy.cfg")
	text := fmt.Sprintf(haproxyText, maxStreams(s.programs.descriptors), runtime.GOMAXPROCS(0), address, s.upstream)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return target{}, fmt.Errorf("write configuration: %w", err)
	}
	return s.start(ctx, haproxy, address, "/health", s.programs.competitors[haproxy].path, "-db", "-f", path)
}
