#!/usr/bin/env bash
# Writes the table of the operators' rights into the guide, between its two marks.
set -euo pipefail
cd "$(dirname "$0")/.."
guide=docs/guide/install.md table=$(mktemp) made=$(mktemp)
trap 'rm -f "$table" "$made"' EXIT
"${CARGO:-cargo}" run --locked --quiet --bin fleetwright -- install --print-rights > "$table"
awk -v table="$table" '
  /<!-- \/rights -->/ { skip = 0 }
  !skip { print }
  /<!-- rights -->/ { while ((getline line < table) > 0) print line; skip = 1 }
' "$guide" > "$made"
cp "$made" "$guide"
