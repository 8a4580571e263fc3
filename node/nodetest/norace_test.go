//go:build !race

package nodetest

const raceDetector = false
