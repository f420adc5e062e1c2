//go:build race

package budget_test

const raceDetector = true
