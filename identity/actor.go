package identity

import "context"

// CommandLine is the Actor of changes that were made without signing in.
const CommandLine = "command line"

// actorKey is the context key of the account that makes changes.
type actorKey struct{}

// WithActor returns a context whose operations are made by an account: the audit log names it as the actor, and what it
// may change is restricted unless it is an administrator. Without an actor, the operations are made by CommandLine.
func WithActor(ctx context.Context, a Account) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// actorOf returns the actor's address, or CommandLine.
func actorOf(ctx context.Context) string {
	if a, ok := ctx.Value(actorKey{}).(Account); ok {
		return a.Email
	}
	return CommandLine
}

// holderOf returns the account that makes changes as the holder of its own keys. An administrator and the command line
// are the operator instead, also for their own keys.
func holderOf(ctx context.Context) (a Account, isHolder bool) {
	a, ok := ctx.Value(actorKey{}).(Account)
	return a, ok && !a.Admin
}
