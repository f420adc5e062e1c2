#!/bin/sh
# Slurm: slurm.sh start NAME JOB [PORT]; slurm.sh stop NAME
#
# JOB is a batch script that runs `vllm serve … --host 0.0.0.0 --port PORT` (8000). Only one job of the user has the name. The time
# in Slurm's queue counts as boot, so launch.boot_timeout should be longer. Output is in what JOB says, or in slurm-ID.out.
#
# Replica N is the job NAME-N, with N in its BASEGATE_REPLICA, on port PORT + N - 1: two may be on one node.
. "$(dirname "$0")/common.sh"
jobs() { squeue --me --noheader --name "$name" --states PENDING,CONFIGURING,RUNNING --format '%T %B'; }
submit() {
  [ -n "$(jobs)" ] || sbatch --job-name "$name" "$job" >&2
}

case $action in
start)
  job=${3:?JOB is missing} port=$((${4:-8000} + replica - 1))
  newest submit
  while current; do
    found=$(jobs)
    case $found in
    '') fail "the job $name has ended: see its output" ;;
    RUNNING*) break ;;
    esac
    sleep "$poll"
  done
  echo "url=http://${found##* }:$port" # of the job's first node
  ;;
stop) newest scancel --me --name "$name" ;;
*) fail "start or stop, not $action" ;;
esac
