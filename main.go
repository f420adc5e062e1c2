// Basegate is a strict reverse proxy for the completions of vLLM servers; README.md says how to use it.
package main

import (
	"context"
	"os"

	"basegate/cli"
)

func main() {
	os.Exit(cli.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}
