#!/usr/bin/env bash
# Runs tests several times beside a load on every second core, and tells which failed how often: a test that fails by chance is a defect, of the
# test or of what it tests.
#
#   hack/flakes.sh TIMES [LEVEL…] [-- FILTER]     as hack/tests.sh; all levels if none is given
#
# The logs of a run with failures are kept beside those of the last run, in tests.RUN.
set -euo pipefail
cd "$(dirname "$0")/.."

times=${1:?how many times}
shift
[ $# -gt 0 ] && [ "$1" != -- ] || set -- unit scenario real hosts "$@"
[[ $times =~ ^[1-9][0-9]*$ ]] || { echo "flakes: $times is not a number of runs" >&2; exit 2; }

logs="${CARGO_TARGET_DIR:-$PWD/target}/tests"
loads=()
trap '[ ${#loads[@]} = 0 ] || kill "${loads[@]}" 2>/dev/null || true' EXIT
hack/tests.sh build
for _ in $(seq $((($(getconf _NPROCESSORS_ONLN) + 1) / 2))); do
  (while :; do :; done) &
  loads+=($!)
done

bad=0
all=$(mktemp)
for run in $(seq "$times"); do
  begun=$SECONDS status=0
  hack/tests.sh "$@" >"$logs.out" 2>&1 || status=$?
  echo "flakes: run $run of $times: $([ $status = 0 ] && echo passed || echo FAILED) in $((SECONDS - begun)) s$(sed -n 's/^tests: FLAKY: \([^ ]*\).*/, FLAKY \1/p' "$logs.out" | tr -d '\n')"
  if [ $status != 0 ] || grep -q '^tests: FLAKY' "$logs.out"; then
    bad=$((bad + 1))
    cat "$logs/failed" "$logs/flaky" 2>/dev/null | sort -u >>"$all" || true
    rm -rf "$logs.$run"
    cp -r "$logs" "$logs.$run"
    mv "$logs.out" "$logs.$run/output"
    echo "flakes: its logs are in $logs.$run; the last lines:"
    tail -n 12 "$logs.$run/output" | sed 's/^/    /'
  fi
done
rm -f "$logs.out"
echo "flakes: $((times - bad)) of $times runs passed without a failure"
sort "$all" | uniq -c | sort -rn | while read -r count name; do echo "flakes: $name: $count of $times"; done
rm -f "$all"
[ $bad = 0 ]
