#!/usr/bin/env bash
# Runs tests, several programs at once: most of them wait most of the time. Each writes its output to a log file of its own; the end of a
# failed one is shown. At the end the slowest twenty are listed.
#
# Tests on hosts boot machines and have timeouts of real programs in them: at most one per core runs at a time. One that fails runs once more,
# alone. If it passes then, the run passes, and its last lines say FLAKY with both logs. No other level is retried.
#
#   hack/tests.sh LEVEL… [-- FILTER]     levels: unit, scenario, real, hosts; FILTER is a part of the names of programs or of tests on hosts
#   hack/tests.sh build                  builds what all levels need, and runs nothing
#
# `hosts` needs Linux and root. Where it cannot run, the last line says so; with FLEETWRIGHT_REQUIRE_HOSTS=1 that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

# A level is known by the name of the test, `…_on_real` and `…_on_hosts`. All others are scenarios, but for those of these crates, which need no
# server, and of the lab, which is one.
pure=' cel merge host sim '
levels=' '
while [ $# -gt 0 ] && [ "$1" != -- ]; do levels+="$1 "; shift; done
[ $# -eq 0 ] || shift
filter=${1:-}
wants() { [[ $levels = *" $1 "* ]]; }

# Says why real hosts cannot run here, or nothing. Asks the kernel instead of guessing from capabilities.
lacking() {
  [ "$(uname -s)" = Linux ] || { echo "real hosts need Linux, and this is $(uname -s)"; return; }
  [ "$(id -u)" = 0 ] || { echo "real hosts need root, and this is user $(id -un)"; return; }
  local tried
  tried=$(unshare --mount --net --propagation private sh -ec '
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/l /mnt/u /mnt/w /mnt/o
    mount -t overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w overlay /mnt/o' 2>&1) ||
    echo "this root has no right to namespaces and mounts: $tried"
}

not_here=
if wants hosts; then
  not_here=$(lacking)
  if [ -n "$not_here" ]; then
    echo "tests: hosts: NOT RUN: $not_here"
    [ -z "${FLEETWRIGHT_REQUIRE_HOSTS:-}" ] || exit 1
    levels=${levels/ hosts / }
    [ "$levels" != ' ' ] || exit 0
  fi
fi
! wants scenario || hack/deps.sh ssh
if wants hosts; then
  hack/deps.sh hosts ssh
  # Control planes of both minors run as pods.
  k8s/build.sh 1.36 >/dev/null
  # Before the other programs: what is built last is target/debug/fleetwright.
  hack/image.sh dev
fi

logs="${CARGO_TARGET_DIR:-$PWD/target}/tests"
mkdir -p "$logs"
rm -f "$logs"/*.log "$logs/failed" "$logs/flaky" "$logs/flaky.lines" "$logs/took"

# NAME FOLDER PROGRAM ARGUMENT… of each run. What is built is the same for all levels, so that nothing is built twice; `fleetwright` itself is
# among it. (`cargo build` would make all crates anew, for features that only tests need.)
echo "tests: building"
built=$(cargo test --workspace --locked --lib --bins --tests --no-run --message-format json-render-diagnostics |
  sed -n '/"test":true},"features"/s/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"kind":\["\([a-z]*\)"\].*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2 \3 \4/p')
while read -r folder kind target program; do
  [ "$kind" != bench ] || continue
  crate=${folder##*/} own=scenario
  name=$crate.$target
  if [ "$kind" != test ]; then
    ! wants unit || echo "$name.$kind $folder $program"
    continue
  fi
  case $name in
  conformance.conformance)
    ! wants scenario || echo "$name.embedded $folder $program --embedded"
    ! wants real || echo "$name.both $folder $program"
    continue
    ;;
  attacks.attacks)
    ! wants scenario || echo "$name.embedded $folder $program --embedded"
    ! wants real || echo "$name.real $folder $program --real"
    continue
    ;;
  conformance.kubectl)
    ! wants real || echo "$name $folder $program"
    continue
    ;;
  conformance.* | lab.*) own=real ;;
  esac
  [[ $pure != *" $crate "* ]] || own=unit
  tests=$("$program" --list --format terse | sed -n 's/: test$//p')
  if wants $own && grep -qv '_on_\(real\|hosts\)$' <<<"$tests"; then
    echo "$name $folder $program --skip _on_real --skip _on_hosts"
  fi
  if wants real && grep -q '_on_real$' <<<"$tests"; then echo "$name.real $folder $program _on_real"; fi
  if wants hosts; then sed -n "s|^\(.*_on_hosts\)\$|$name.hosts.\1 $folder $program --exact \1 --nocapture|p" <<<"$tests"; fi
done <<<"$built" >"$logs/all"
[ "$levels" != ' build ' ] || exit 0
! wants hosts || "${CARGO_TARGET_DIR:-$PWD/target}/debug/fleetwright-lab" build
[ -z "$filter" ] || { grep -e "^[^ ]*$filter" "$logs/all" >"$logs/some" || true; mv "$logs/some" "$logs/all"; }
[ -s "$logs/all" ] || { echo "tests: none at$levels has $filter in its name"; exit 1; }

# Those that took long the last time come first, so that none of them is alone at the end.
touch "$logs/times"
awk 'FILENAME == ARGV[1] {took[$1] = $2; next} {print ($1 in took ? took[$1] : 999), $0}' "$logs/times" "$logs/all" |
  sort -s -k1,1nr | cut -d' ' -f2- >"$logs/order"

# one FAILED NAME FOLDER PROGRAM ARGUMENT…: runs a program; appends its name to the file FAILED if it fails.
one() {
  local failed=$1 name=$2 folder=$3 log="$logs/$2.log" begun=$SECONDS status=0 took
  shift 3
  # Whoever hangs is killed; what it started ends with it. The slowest took 1364 s beside a compiler.
  (cd "$folder" && TIMEFORMAT='tests: %R s, CPU %U s and %S s of the kernel' && time timeout --foreground --signal=KILL 2700 "$@") >"$log" 2>&1 || status=$?
  took=$((SECONDS - begun))
  echo "$took $name" >>"$logs/took"
  if [ $status = 0 ]; then
    echo "$name $took" >>"$logs/times"
    echo "tests: $name: ok in $took s$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/, \1 passed/p' "$log" | tail -1)"
  else
    tail -n 80 "$log" | sed 's/^/    /'
    [ $status != 137 ] || echo "tests: $name was killed after 2700 s"
    echo "tests: $name: FAILED in $took s; all that it said is in $log"
    echo "$name" >>"$failed"
    return 1
  fi
}

# Runs each failed test on hosts once more, alone. Those that fail again stay in $logs/failed.
again() {
  local name line
  mv "$logs/failed" "$logs/first"
  while read -r name; do
    if ! line=$(grep -m 1 "^$name " "$logs/order.hosts"); then
      echo "$name" >>"$logs/failed"
      continue
    fi
    echo "tests: $name: failed; running it once more, alone"
    mv "$logs/$name.log" "$logs/$name.first.log"
    # shellcheck disable=SC2086 # the line is split into words on purpose, as xargs does
    ! one "$logs/failed" $line </dev/null || echo "$name" >>"$logs/flaky"
  done <"$logs/first"
  rm -f "$logs/first"
}

# Links, network namespaces, mounts, cgroups and processes of runs that ended: all of them have the number of the process that made them in
# their names.
left() {
  wants hosts || return 0
  {
    ip -o link | grep -o 'fw[0-9]*[nv][0-9]*' || true
    ls /run/netns 2>/dev/null || true
    grep -o 'fleetwright-hosts-[0-9]*-[^/ ]*' /proc/self/mountinfo || true
    find /sys/fs/cgroup -maxdepth 3 -name 'fleetwright-[0-9]*-*' -printf '%f\n' || true
    pgrep -fa 'fleetwright-hosts-[0-9]*-' | grep -o 'fleetwright-hosts-[0-9]*-[^/ ]*' || true
  } | sort -u | while read -r name; do
    number=$(sed -n 's/^\(fw\|fleetwright-\(hosts-\)\?\)\([0-9]\+\).*/\3/p' <<<"$name")
    [ -z "$number" ] || [ -d "/proc/$number" ] || echo "$name"
  done
}

# kube-apiserver and etcd live shortly here: a fifth of their CPU time is garbage collection otherwise.
export GOGC=${GOGC:-400}
export -f one
export logs
begun=$SECONDS
before=$(left)
places=${FLEETWRIGHT_TESTS_AT_ONCE:-$((2 * $(getconf _NPROCESSORS_ONLN)))}
grep ' --exact ' "$logs/order" >"$logs/order.hosts" || true
grep -v ' --exact ' "$logs/order" >"$logs/order.others" || true
# start FILE: starts what stands in it, as many at once as there are places. Who fails is in $logs/failed.
start() {
  (exec xargs -r -P "$places" -L 1 bash -c 'one "$@"' one "$logs/failed" <"$1") &
}
[ ! -s "$logs/order.hosts" ] || places=$(((places + 1) / 2))
echo "tests:$levels: $(wc -l <"$logs/order.others") programs and $(wc -l <"$logs/order.hosts") tests on hosts, $places of each at once; logs are in $logs"
start "$logs/order.others"
others=$!
if [ -s "$logs/order.hosts" ]; then
  start "$logs/order.hosts"
  wait $! || true
  # Half of the places of hosts are free now, as these wait less than hosts: xargs runs one more at once for each of these signals.
  for _ in $(seq $((places / 2))); do kill -USR1 "$others" 2>/dev/null || true; done
fi
wait "$others" || true
[ ! -s "$logs/failed" ] || again
failed=0
[ ! -s "$logs/failed" ] || failed=1
while read -r name; do
  echo "tests: $name was not run to its end" && failed=1
done < <(comm -23 <(cut -d' ' -f1 "$logs/order" | sort) <(cut -d' ' -f2 "$logs/took" | sort -u))
# The last time that each of them took.
awk '{took[$1] = $2} END {for (test in took) print test, took[test]}' "$logs/times" >"$logs/times.new"
mv "$logs/times.new" "$logs/times"
# What was killed is cleaned up by others, a moment later.
behind=
for _ in $(seq 50); do
  behind=$(comm -13 <(echo "$before") <(left))
  [ -n "$behind" ] || break
  sleep 0.2
done
[ -z "$behind" ] || { echo "tests: left behind: $behind" && failed=1; }
echo "tests: the slowest twenty:"
# Not with head, which ends before sort does: then sort fails.
sort -nr "$logs/took" | awk 'NR <= 20 {printf "  %5d s  %s\n", $1, $2}'
if [ $failed != 0 ]; then
  # Once more at the end, where it is seen: which of them, and what each said first.
  [ ! -e "$logs/failed" ] || while read -r name; do
    echo "tests: $name: FAILED:"
    { grep -m 1 -A 3 ' panicked at ' "$logs/$name.log" || sed -n '/^Caused by:/,/^$/p' "$logs/$name.log"; } | head -n 5 | cut -c 1-200 | sed 's/^/    /' || true
  done <"$logs/failed"
  echo "tests: FAILED after $((SECONDS - begun)) s"
  exit 1
fi
echo "tests: all passed in $((SECONDS - begun)) s"
[ ! -e "$logs/flaky" ] || while read -r name; do
  echo "tests: FLAKY: $name failed beside others and passed alone; logs: $logs/$name.first.log and $logs/$name.log"
done <"$logs/flaky" | tee "$logs/flaky.lines"
[ -z "$not_here" ] || echo "tests: hosts: NOT RUN: $not_here"
