package fleet

import "testing"

func TestWaitingRequestsOfAllEnginesAreSummed(t *testing.T) {
	for text, want := range map[string]int64{
		"": 0,
		"# HELP vllm:num_requests_waiting Number of requests waiting\nvllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 3.0\nvllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 4.0\n": 7,
		"vllm:num_requests_waiting 2\n":                                  2,
		"vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 9.0\n": 0,
		"vllm:num_requests_waiting{model_name=\"a } 1 b\"} 5.0\n":        5,
		"vllm:num_requests_waiting{model_name=\"m\"} NaN-ish\n":          0,
		"vllm:num_requests_running{model_name=\"m\"} 6.0\n":              0,
	} {
		if got := waitingRequests([]byte(text)); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}
