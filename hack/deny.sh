#!/usr/bin/env bash
# hack/deny.sh [--installed]: checks licences, bans, sources and advisories of all dependencies. The last line says what was checked and what was not.
# cargo-deny is kept in the cache; with --installed it is not built if it is not there, because that takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
tools=${FLEETWRIGHT_CACHE:-$HOME/.cache/fleetwright}
PATH=$tools/bin:$PATH

if ! command -v cargo-deny >/dev/null; then
  if [ "${1-}" = --installed ]; then
    echo "deny: NOT CHECKED: licences, bans, sources and advisories: cargo-deny is not installed; 'make deny' builds it once (some minutes)"
    exit 0
  fi
  echo "deny: installing cargo-deny $version into $tools/bin (some minutes, once)"
  ${CARGO:-cargo} install --locked --root "$tools" "cargo-deny@$version"
fi
cargo-deny --all-features check bans licenses sources
# Whether the database can be had is another question than what is in it.
if ! timeout 120 cargo-deny fetch db; then
  echo "deny: licences, bans and sources are well; advisories NOT CHECKED: the RustSec database cannot be fetched from github.com/rustsec/advisory-db"
  exit 0
fi
cargo-deny --all-features check --disable-fetch advisories
echo "deny: licences, bans, sources and advisories are well"
