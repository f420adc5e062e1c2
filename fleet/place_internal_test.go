package fleet

import "testing"

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
		running, waiting, known := engineLoad([]byte(text))
		if got := (load{running, waiting, known}); got != want {
			t.Errorf("%q: got %+v, want %+v", text, got, want)
		}
	}
}
