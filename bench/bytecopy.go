package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// copyCommand is the argument that makes this program the least that a proxy written in Go can be.
const byteCopyCommand = "copy"

// serveCopy passes bytes between every connection and one of its own to the target, and understands none of them, until
// ctx ends. What that costs, in system calls and in goroutines that sleep and wake, no proxy in Go that sees the bytes
// can save.
func serveByteCopy(ctx context.Context, listen, target string) error {
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })() // the process ends either way
	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		client, err := socket.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		connections.Go(func() { relay(ctx, client, target) })
	}
}

// join copies both ways until one end closes, or ctx ends.
func relay(ctx context.Context, client net.Conn, target string) {
	defer client.Close()
	upstream, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
	if err != nil {
		return // the client sees its connection close
	}
	closeBoth := func() { _, _ = client.Close(), upstream.Close() }
	defer context.AfterFunc(ctx, closeBoth)()
	var back sync.WaitGroup
	back.Go(func() {
		copyBytes(client, upstream)
		closeBoth()
	})
	copyBytes(upstream, client)
	closeBoth()
	back.Wait()
}

// pass copies through a buffer: left to themselves two sockets would let the kernel do it, and nobody see a byte.
func copyBytes(to io.Writer, from io.Reader) {
	buffer := make([]byte, 32<<10)
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buffer) // it ends when an end closes
}
