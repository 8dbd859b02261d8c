#!/usr/bin/env bash
# Puts what the image of the operators needs into target/image, for deploy/Dockerfile: the program without what only development needs (the
# embedded API server, the simulator, the lab), and the helpers for hosts.
#
#   hack/image.sh          optimized
#   hack/image.sh dev      quick to build, as tests use it
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
image=$target/image
hack/helper.sh
# The all-in-one program of an earlier build comes back, whatever happens here.
program=
restore() { [ -z "$program" ] || [ ! -e "$program.all" ] || mv -f "$program.all" "$program"; }
trap restore EXIT
keep() { [ ! -e "$program" ] || ln -f "$program" "$program.all"; }
case ${1:-release} in
release)
  echo "image: building the operators (some minutes the first time)"
  program=$target/release/fleetwright
  keep
  cargo build --release --locked -p fleetwright-cli --no-default-features
  ;;
dev)
  echo "image: building the operators as tests use them (some minutes the first time)"
  program=$target/debug/fleetwright
  keep
  # The same features of dependencies as for all tests, so that only the program itself is built again.
  cargo test --workspace --locked --no-default-features --test cli --no-run --quiet
  ;;
*)
  echo "image: ${1} is neither release nor dev" >&2
  exit 2
  ;;
esac
mkdir -p "$image"
strip -o "$image/.fleetwright" "$program"
restore
# Left alone if it is the same: what is made of it is then the same, too.
cmp -s "$image/.fleetwright" "$image/fleetwright" || mv "$image/.fleetwright" "$image/fleetwright"
rm -f "$image/.fleetwright"
rm -rf "$image/helpers"
cp -r "$target/helpers" "$image/helpers"
echo "image: $image has $(du -h "$image/fleetwright" | cut -f1) of program; next: docker build -f deploy/Dockerfile -t NAME $image"
