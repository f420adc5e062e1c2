#!/bin/sh
# Modal: modal.sh start NAME APP; modal.sh stop NAME
#
# APP is a Python file with an app of this NAME whose function serves vLLM by @modal.web_server. Modal starts a container with the
# first request and stops it after `scaledown_window`, so idle_after may be 0; a stop ends the app. Give the backend an api_key that
# vLLM requires: the address is public.
. "$(dirname "$0")/common.sh"

case $action in
start)
  app=${3:?APP is missing}
  newest true
  output=$(modal deploy --name "$name" "$app" 2>&1) || fail "$output"
  if ! (current); then # a stop has come while it was deployed
    modal app stop "$name" >&2
    exit 1
  fi
  url=$(echo "$output" | grep -o 'https://[^ ]*\.modal\.run' | tail -n 1) || fail "modal deploy has printed no address: $output"
  echo "url=$url"
  ;;
stop)
  newest true
  modal app stop "$name"
  ;;
*) fail "start or stop, not $action" ;;
esac
