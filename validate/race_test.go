//go:build race

package validate_test

func init() { raceEnabled = true }
