//go:build race

package validate_test

func init() { raceDetector = true }
