#!/bin/sh
# Another machine: ssh.sh start NAME [USER@]HOST PORT COMMAND…; ssh.sh stop NAME [USER@]HOST
#
# COMMAND is `vllm serve … --host 0.0.0.0 --port PORT`. It runs on HOST after the connection has ended; its output is in
# ~/.basegate-launch/NAME.log there, as are its process id and the fence: all gateways see them. ssh must not ask for a password.
#
# Replica N is NAME-N on PORT + N - 1. COMMAND has N in BASEGATE_REPLICA, for its port and its GPU: a script, or sh -c '…'.
set -eu
[ $# -ge 3 ] || { echo "usage: $0 start|stop NAME HOST …" >&2; exit 2; }
action=$1 name=$2 host=$3 replica=${BASEGATE_REPLICA:-1}
[ "$replica" = 1 ] || name=$name-$replica
shift 3
case $action in
start)
  port=${1:?PORT is missing}
  shift
  [ $# -gt 0 ] || { echo "COMMAND is missing" >&2; exit 2; }
  ;;
stop) ;;
*) echo "start or stop, not $action" >&2; exit 1 ;;
esac

# Each argument of COMMAND in quotes, since ssh joins them and the shell there splits them again.
quoted=
for word in "$@"; do
  quoted="$quoted '$(printf %s "$word" | sed "s/'/'\\\\''/g")'"
done

ssh -o BatchMode=yes "$host" "env BASEGATE_REPLICA=$replica sh -s -- '$action' '$name' '${BASEGATE_FENCE:-}'$quoted" <<'REMOTE'
set -eu
action=$1 name=$2 fence=$3
shift 3
mkdir -p "$HOME/.basegate-launch"
cd "$HOME/.basegate-launch"
exec 9>"$name.lock"
flock 9
last=$(cat "$name.fence" 2>/dev/null || echo 0)
fence=${fence:-$last}
[ "$fence" -ge "$last" ] || { echo "fence $fence is too old: $last has been here" >&2; exit 1; }
echo "$fence" >"$name.fence"
pid=$(cat "$name.pid" 2>/dev/null || true)
running() { [ -n "$pid" ] && kill -s 0 -- "-$pid" 2>/dev/null; }
case $action in
start)
  running && exit
  cd "$HOME"
  setsid nohup "$@" >"$HOME/.basegate-launch/$name.log" 2>&1 </dev/null 9>&- &
  echo $! >"$HOME/.basegate-launch/$name.pid"
  ;;
stop)
  running || exit 0
  kill -s TERM -- "-$pid"
  for second in 1 2 3 4 5 6 7 8 9 10; do
    running || break
    sleep 1
  done
  ! running || kill -s KILL -- "-$pid"
  rm -f "$name.pid"
  ;;
esac
REMOTE
[ "$action" = stop ] || echo "url=http://${host#*@}:$((port + replica - 1))"
