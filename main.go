// Basegate is a strict reverse proxy with a token ledger for the completions API of vLLM servers. README.md describes
// its use.
package main

import (
	"context"
	"os"

	"basegate/cli"
)

func main() {
	os.Exit(cli.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}
