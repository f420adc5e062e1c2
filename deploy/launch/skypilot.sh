#!/bin/sh
# SkyPilot: skypilot.sh start NAME TASK [PORT]; skypilot.sh stop NAME
#
# TASK is a task in YAML whose `run` is `vllm serve … --host 0.0.0.0 --port PORT` (8000) and whose `resources` have `ports: PORT`.
# NAME becomes the name of the cluster, which a stop takes down: a stopped one would keep its disks.
. "$(dirname "$0")/common.sh"
running() { sky status "$name" 2>/dev/null | grep -qw UP; }

case $action in
start)
  task=${3:?TASK is missing} port=${4:-8000}
  newest true
  running || sky launch --yes --detach-run --cluster "$name" "$task" >&2
  if ! (current); then # a stop has come while it was launched
    sky down --yes "$name" >&2
    exit 1
  fi
  at=$(sky status --endpoint "$port" "$name" | tail -n 1)
  echo "url=http://${at#http://}"
  ;;
stop)
  newest true
  sky down --yes "$name"
  ;;
*) fail "start or stop, not $action" ;;
esac
