package fleet

import (
	"math"
	"testing"
)

func TestLoadOfAllEnginesIsSummed(t *testing.T) {
	type load struct {
		running, waiting int64
		known            bool
	}
	for text, want := range map[string]load{
		"": {},
		"# HELP vllm:num_requests_waiting Number of requests waiting\nvllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 3.0\nvllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 4.0\n": {0, 7, true},
		"vllm:num_requests_waiting 2\n":                                  {0, 2, true},
		"vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 9.0\n": {},
		"vllm:num_requests_waiting{model_name=\"a } 1 b\"} 5.0\n":        {0, 5, true},
		"vllm:num_requests_waiting{model_name=\"m\"} NaN-ish\n":          {},
		"vllm:num_requests_running{model_name=\"m\"} 6.0\n":              {6, 0, false},
		"vllm:num_requests_running 6\nvllm:num_requests_waiting 0\n":     {6, 0, true},
	} {
		e, known := readEngine([]byte(text))
		if got := (load{e.Running, e.Waiting, known}); got != want {
			t.Errorf("%q: got %+v, want %+v", text, got, want)
		}
	}
}

func TestCacheOfAllEnginesIsRead(t *testing.T) {
	for text, want := range map[string][2]float64{ // the used part and the hit rate
		"vllm:kv_cache_usage_perc{engine=\"0\"} 0.2\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.6\n" +
			"vllm:prefix_cache_queries_total{engine=\"0\"} 300.0\nvllm:prefix_cache_queries_total{engine=\"1\"} 100.0\n" +
			"vllm:prefix_cache_hits_total{engine=\"0\"} 90.0\nvllm:prefix_cache_hits_total{engine=\"1\"} 10.0\n" +
			"vllm:prefix_cache_hits_created{engine=\"0\"} 1.7e+09\nvllm:external_prefix_cache_hits_total 5\n": {.4, .25},
		"vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\nvllm:cpu_cache_usage_perc 1\n" +
			"vllm:gpu_prefix_cache_queries_total 8\nvllm:gpu_prefix_cache_hits_total 4\n": {.5, .5},
	} {
		e, _ := readEngine([]byte(text))
		if e.Cache == nil || e.HitRate == nil || math.Abs(*e.Cache-want[0]) > 1e-9 || *e.HitRate != want[1] {
			t.Errorf("%q: got %v and %v, want %v", text, e.Cache, e.HitRate, want)
		}
	}
	if e, _ := readEngine([]byte("vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\n")); e.Cache != nil || e.HitRate != nil {
		t.Errorf("nothing known: got %v and %v", e.Cache, e.HitRate)
	}
}
