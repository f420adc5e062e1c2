package admission

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	keysDesc = prometheus.NewDesc("basegate_admission_keys",
		"Keys that have requests.", nil, nil)
	runningDesc = prometheus.NewDesc("basegate_admission_running_requests",
		"Requests that have a slot.", nil, nil)
	waitingDesc = prometheus.NewDesc("basegate_admission_waiting_requests",
		"Requests that wait for a slot of their key or account.", nil, nil)
	bufferedDesc = prometheus.NewDesc("basegate_admission_buffered_bytes",
		"What requests keep in memory: bodies, what is counted in them, answers, and the cost of waiting.", nil, nil)
	refusedDesc = prometheus.NewDesc("basegate_admission_refused_total",
		"Requests refused because requests held too much memory.", nil, nil)
)

// Collector exports a Queue's Stats as Prometheus metrics. No label names a key.
type Collector struct{ queue *Queue }

// NewCollector returns a Collector for q.
func NewCollector(q *Queue) *Collector { return &Collector{queue: q} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.queue.Stats()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64) {
		ch <- prometheus.MustNewConstMetric(d, kind, value)
	}
	send(keysDesc, prometheus.GaugeValue, float64(s.Keys))
	send(runningDesc, prometheus.GaugeValue, float64(s.Running))
	send(waitingDesc, prometheus.GaugeValue, float64(s.Waiting))
	send(bufferedDesc, prometheus.GaugeValue, float64(s.BufferedBytes))
	send(refusedDesc, prometheus.CounterValue, float64(s.Refused))
}

var (
	turnsLabel = []string{"work"}

	turnsPlacesDesc = prometheus.NewDesc("basegate_turns_places",
		"Places that accounts get in turn, by the work that needs one.", turnsLabel, nil)
	turnsRunningDesc = prometheus.NewDesc("basegate_turns_running",
		"Places that are held.", turnsLabel, nil)
	turnsWaitingDesc = prometheus.NewDesc("basegate_turns_waiting",
		"Calls that wait for a place.", turnsLabel, nil)
	turnsLongestDesc = prometheus.NewDesc("basegate_turns_longest_wait_seconds",
		"How long the call that waits longest has waited; 0 if none waits.", turnsLabel, nil)
	turnsRefusedDesc = prometheus.NewDesc("basegate_turns_refused_total",
		"Calls that gave up waiting for a place.", turnsLabel, nil)
)

// TurnsCollector exports the Stats of Turns by the name of their work. No label names an account.
type TurnsCollector map[string]*Turns

// Describe implements prometheus.Collector.
func (c TurnsCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c TurnsCollector) Collect(ch chan<- prometheus.Metric) {
	for _, work := range slices.Sorted(maps.Keys(c)) {
		s := c[work].Stats()
		send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64) {
			ch <- prometheus.MustNewConstMetric(d, kind, value, work)
		}
		send(turnsPlacesDesc, prometheus.GaugeValue, float64(s.Places))
		send(turnsRunningDesc, prometheus.GaugeValue, float64(s.Running))
		send(turnsWaitingDesc, prometheus.GaugeValue, float64(s.Waiting))
		send(turnsLongestDesc, prometheus.GaugeValue, s.Longest.Seconds())
		send(turnsRefusedDesc, prometheus.CounterValue, float64(s.Refused))
	}
}
