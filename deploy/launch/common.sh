# What the scripts of this folder share. Each is called as SCRIPT start|stop NAME …, where NAME is that of the model's job.
#
# BASEGATE_FENCE is a number that the gateway raises with each program that it runs. A script refuses to undo what one with a higher
# number has done: with several gateways, the one that ran it may have been replaced meanwhile. The highest number of each NAME is in
# BASEGATE_LAUNCH_STATE, a folder that all gateways share.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 start|stop NAME …" >&2; exit 2; }
action=$1 name=$2
replica=${BASEGATE_REPLICA:-1} # the number of one of several; those after the first have names of their own
[ "$replica" = 1 ] || name=$name-$replica
state=${BASEGATE_LAUNCH_STATE:-$HOME/.basegate-launch}
mkdir -p "$state"

fail() { echo "$*" >&2; exit 1; }

# newest runs a command that takes seconds at most, while no other script of NAME runs one, unless a higher number came before.
newest() (
  exec 9>"$state/$name.lock"
  flock 9
  last=$(cat "$state/$name.fence" 2>/dev/null || echo 0)
  : "${BASEGATE_FENCE:=$last}" # of a person
  [ "$BASEGATE_FENCE" -ge "$last" ] || fail "fence $BASEGATE_FENCE is too old: $last has been here"
  echo "$BASEGATE_FENCE" >"$state/$name.fence"
  "$@" 9>&-
)

# current fails if a script with a higher number has run since.
current() { [ "$(cat "$state/$name.fence")" -le "${BASEGATE_FENCE:-$(cat "$state/$name.fence")}" ] || fail "a newer program has taken $name over"; }

# poll is the time between two looks, in seconds.
poll=${BASEGATE_LAUNCH_POLL:-5}
