#!/usr/bin/env bash
# Builds the static helper that runs on hosts, and leaves it as fleetwright-host-ARCH in the folder given (target/helpers by default),
# which is where `--helpers DIR` looks for it.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-target}"
into="${1:-$target/helpers}"
case "$(uname -m)" in
x86_64) arch=amd64 triple=x86_64-unknown-linux-gnu ;;
aarch64) arch=arm64 triple=aarch64-unknown-linux-gnu ;;
*) echo "no helper is built on $(uname -m)" >&2 && exit 1 ;;
esac
# Its own folder: these flags would make cargo build everything else again. Built by the compiler itself, whatever wraps it: clippy optimizes less.
unset RUSTC_WORKSPACE_WRAPPER
RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --quiet --profile host -p fleetwright-host --bin fleetwright-host \
  --target "$triple" --target-dir "$target/helper"
mkdir -p "$into"
# Not written over: it may be running.
cp "$target/helper/$triple/host/fleetwright-host" "$into/.fleetwright-host-$arch"
mv -f "$into/.fleetwright-host-$arch" "$into/fleetwright-host-$arch"
echo "$into/fleetwright-host-$arch: $(stat -c %s "$into/fleetwright-host-$arch") bytes, $("$into/fleetwright-host-$arch" version)"
