#!/usr/bin/env bash
# Fuzzes targets, PACKAGE:TARGET each, for a time each: scripts/fuzz.sh 10s ./internal/wire:FuzzIdentify …
# A target that finds something writes a failing input, and that ends it with 1. Go's fuzzer may also fail with nothing but
# "context deadline exceeded" when its time is up while a worker is busy (golang/go#75804): then the target is fuzzed once more.
set -euo pipefail
go=${GO:-go} time=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fuzz() { # target, package
	echo "fuzz $1 for $time"
	$go test -run '^$' -fuzz "^$1\$" -fuzztime "$time" "$2" 2>&1 | tee "$log"
}

for f in "$@"; do
	fuzz "${f#*:}" "${f%:*}" && continue
	if grep -q 'Failing input written' "$log" || ! grep -qx '    context deadline exceeded' "$log"; then
		exit 1
	fi
	echo "the fuzzer ran out of time and found nothing; once more"
	fuzz "${f#*:}" "${f%:*}"
done
