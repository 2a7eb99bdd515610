#!/usr/bin/env bash
# Runs a go test command. With AGAIN=n, n > 0, it gives a failed test n more runs, alone, all of which must pass, and
# then says so at the end: such a test, or what it tests, is still to be mended. More than three failed tests, and what
# failed without naming a test (a panic, a time that ran out, code that does not build), are final.
#
# usage: AGAIN=n scripts/test-again.sh go test FLAGS PACKAGES
set -uo pipefail
out=$(mktemp)
trap 'rm -f "$out"' EXIT
"$@" | tee "$out"
status=${PIPESTATUS[0]}
[[ $status == 0 || ${AGAIN:-0} == 0 ]] && exit "$status"

# A package's lines come together: first "--- FAIL: Name" of each test, at the end "FAIL<tab>package<tab>time".
again=$(awk -F'[ \t]+' '
	/^--- FAIL: / { names = names (names ? "|" : "") $3; n++ }
	/^panic: /    { final = 1 }
	/^FAIL\t/     { if (!names) final = 1; else print $2, "^(" names ")$"; names = "" }
	END           { if (final || n > 3) print "final" }' "$out")
[[ -z $again || $again == *final* ]] && exit "$status"
while read -r package tests; do
	echo "=== $package: $tests failed: $AGAIN runs more, alone"
	go test -race -timeout 10m -count="$AGAIN" -run "$tests" "$package" </dev/null || exit 1
done <<<"$again"
echo "=== FLAKY, to be mended: failed once, then passed $AGAIN times:"
echo "$again"
