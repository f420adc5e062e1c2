#!/bin/sh
# Kubernetes: kubernetes.sh start|stop NAME [PORT], the deployment of one model in the namespace of kubectl's context
#
# It has no replica until a request needs it. The backend's url in config.yaml is that of its service, so no address is printed. The
# fence is an annotation, which is written together with the number of replicas: in one call, unlike `kubectl scale`, so that an old
# start cannot undo a newer stop. BASEGATE_LAUNCH_STATE is not used.
#
# Replica N of the gateway is a deployment of its own, NAME-N, behind a service of this name on PORT (8000).
set -eu
[ $# -ge 2 ] || { echo "usage: $0 start|stop NAME [PORT]" >&2; exit 2; }
action=$1 name=$2 replica=${BASEGATE_REPLICA:-1}
[ "$replica" = 1 ] || name=$name-$replica
fail() { echo "$*" >&2; exit 1; }
get() { kubectl get deployment "$name" --output "jsonpath={$1}"; }

# scale fails if somebody else has changed the deployment meanwhile.
scale() {
  version=$(get .metadata.resourceVersion)
  last=$(get .metadata.annotations.basegate-fence)
  last=${last:-0}
  fence=${BASEGATE_FENCE:-$last}
  [ "$fence" -ge "$last" ] || { echo "fence $fence is too old: $last has been here" >&2; exit 3; }
  kubectl patch deployment "$name" --type merge --patch \
    "{\"metadata\":{\"resourceVersion\":\"$version\",\"annotations\":{\"basegate-fence\":\"$fence\"}},\"spec\":{\"replicas\":$1}}"
}

case $action in
start) replicas=1 ;;
stop) replicas=0 ;;
*) fail "start or stop, not $action" ;;
esac
tries=5
until (scale "$replicas"); do
  [ $? != 3 ] || exit 1
  tries=$((tries - 1))
  [ "$tries" -gt 0 ] || fail "the deployment $name could not be scaled to $replicas"
  sleep "${BASEGATE_LAUNCH_POLL:-1}"
done
[ "$replicas" = 1 ] || exit 0
kubectl rollout status deployment "$name"
[ "$replica" = 1 ] || echo "url=http://$name:${3:-8000}"
