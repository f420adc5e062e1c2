package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// byteCopyCommand is the argument that makes this program a proxy that copies bytes.
const byteCopyCommand = "copy"

// serveByteCopy copies bytes between each client connection and a new connection to the target, without parsing them,
// until ctx ends. Its system calls and goroutine switches are a lower bound for any proxy in Go that sees the bytes.
func serveByteCopy(ctx context.Context, f childFlags) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })() // the process ends either way
	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		client, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		connections.Go(func() { relay(ctx, client, f.target) })
	}
}

// relay copies in both directions until either end closes or ctx ends.
func relay(ctx context.Context, client net.Conn, target string) {
	defer client.Close()
	upstream, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
	if err != nil {
		return // the client sees its connection close
	}
	closeBoth := func() { _, _ = client.Close(), upstream.Close() }
	defer context.AfterFunc(ctx, closeBoth)()
	var downstream sync.WaitGroup
	downstream.Go(func() {
		copyBytes(client, upstream)
		closeBoth()
	})
	copyBytes(upstream, client)
	closeBoth()
	downstream.Wait()
}

// copyBytes copies through a buffer. The struct types hide the sockets' ReadFrom and WriteTo, with which the kernel
// would splice the bytes past the process.
func copyBytes(to io.Writer, from io.Reader) {
	buffer := make([]byte, 32<<10)
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buffer) // ends when either end closes
}
