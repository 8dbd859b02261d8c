#!/usr/bin/env bash
# hack/deny.sh: checks licences, bans, sources and advisories of all dependencies. The last line says what was checked and what was not.
# cargo-deny is built once and kept in the cache: about six minutes of CPU time, three to four minutes on two cores. A check takes seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
tools=${FLEETWRIGHT_CACHE:-$HOME/.cache/fleetwright}
PATH=$tools/bin:$PATH

if ! cargo-deny --version 2>/dev/null | grep -qx "cargo-deny $version"; then
  echo "deny: installing cargo-deny $version into $tools/bin (some minutes, once)"
  # In a folder of its own: what it is built from is of no use for anything else.
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  CARGO_TARGET_DIR=$folder ${CARGO:-cargo} install --quiet --locked --force --root "$tools" "cargo-deny@$version"
fi
cargo-deny --all-features check bans licenses sources
# Whether the database can be had is another question than what is in it.
if ! timeout 120 cargo-deny fetch db; then
  echo "deny: licences, bans and sources are well; advisories NOT CHECKED: the RustSec database cannot be fetched from github.com/rustsec/advisory-db"
  exit 0
fi
cargo-deny --all-features check --disable-fetch advisories
echo "deny: licences, bans, sources and advisories are well"
