#!/usr/bin/env bash
# Makes kube/builtins/src/defaults/shape.txt from the Go types of Kubernetes; with --check, compares it instead.
set -euo pipefail
cd "$(dirname "$0")/.."
table=$PWD/kube/builtins/src/defaults/shape.txt
version=$(awk '$1 == "k8s.io/api" && $2 == "=>" {print $4}' k8s/1.37/go.mod)
(cd k8s/1.37 && go mod download k8s.io/api k8s.io/apimachinery k8s.io/apiextensions-apiserver)
made=$(cd kube/builtins/shape && go run . "$(go env GOMODCACHE)" "$version")
if [ "${1:-}" = --check ]; then
  diff -u "$table" <(printf '%s\n' "$made") ||
    { echo "kube/builtins/src/defaults/shape.txt is stale: run make generate and commit the result"; exit 1; }
else
  printf '%s\n' "$made" >"$table"
fi
