//go:build !race

package clustermodel_test

const raceDetector = false
