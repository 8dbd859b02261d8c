#!/usr/bin/env bash
# Words that users should not have to look up: docs/glossary.md has the ones to use. Checked are documents, outside of code blocks, and the text
# that programs print: string literals, without placeholders and tests. The pages of docs/reference are made from the comments of the API and from
# the help of the commands, so that these are checked as well.
set -euo pipefail
cd "$(dirname "$0")/.."
words='anew|told|nobody|so many|of before|by one hand|put right|in shape|says no|let go|lets go|fights back'
found=$(git ls-files -z -- '*.md' ':!CHANGELOG.md' ':!docs/conformance.md' | xargs -0 awk -v words="$words" '
  FNR == 1 { code = 0 }
  /^ *```/ { code = !code; next }
  code && FILENAME !~ /reference\/cli.md$/ { next }
  { line = tolower($0); gsub(/`[^`]*`/, "", line) }
  line ~ "(^|[^a-z-])(" words ")([^a-z-]|$)" { print FILENAME ":" FNR ": " $0 }')
# Texts of other programs, and of what only tests run, are not ours to choose.
found+=$(git ls-files -z -- 'crates/*/src/*.rs' 'kube/*/src/*.rs' 'testing/lab/src/*.rs' |
  grep -zvE '/tests/|tests\.rs$' |
  xargs -0 awk -v words="$words" '
  FNR == 1 { tests = 0 }
  /#\[cfg\(test\)\]/ { tests = 1 }
  tests || /^ *\/\// { next }
  { line = tolower($0); text = ""
    while (match(line, /"([^"\\]|\\.)*"/)) { text = text " " substr(line, RSTART + 1, RLENGTH - 2) " ;"; line = substr(line, RSTART + RLENGTH) }
    gsub(/\{[^{}]*\}/, "", text) }
  text ~ "(^|[^a-z-])(" words ")([^a-z-]|$)" { print FILENAME ":" FNR ": " $0 }')
[ -z "$found" ] || { echo "$found"; echo "words: use plain ones instead (see docs/glossary.md): ${words//|/, }"; exit 1; }
