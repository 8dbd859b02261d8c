#!/bin/sh
# A whole reporter: says whether the log agent is ready on a machine. It runs wherever kubectl reaches the API server;
# a real one would do the same whenever the pod changes, and every few minutes as a heartbeat.
#
# usage: reporter.sh MACHINE
set -eu
machine=$1
reporter=log-agent

# What is seen: the agent's pod on that Node, and whether it is ready.
ready=$(kubectl get pods --all-namespaces -l app=log-agent --field-selector "spec.nodeName=$machine" \
  -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}')
case $ready in
  True) status=True reason=Ready message="" ;;
  "") status=False reason=NoPod message="no pod with app=log-agent is ready on $machine" ;;
  *) status=False reason=NotReady message="the agent's pod on $machine is not ready" ;;
esac

# What is said: one ConfigMap for each machine and reporter, named MACHINE.REPORTER. Server-side apply makes it or changes it.
kubectl apply --server-side --field-manager="$reporter" -f - <<REPORT
apiVersion: v1
kind: ConfigMap
metadata:
  name: $machine.$reporter
  namespace: fleet
  labels:
    fleetwright.io/machine: $machine
    fleetwright.io/reporter: $reporter
data:
  conditions: |
    [{"type": "LogAgentReady", "status": "$status", "reason": "$reason", "message": "$message",
      "heartbeat": "$(date -u +%Y-%m-%dT%H:%M:%SZ)"}]
REPORT
