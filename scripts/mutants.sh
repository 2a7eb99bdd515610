#!/usr/bin/env bash
# mutants.sh [NAME...]: takes away one guard of package dedup at a time and expects TestModel to notice. Each patch in
# scripts/mutants names its guard and what is expected: caught, or redundant (docs/model says why). Fails when a patch
# no longer applies, when an expectation is not met, or when the code fails as it stands.
# SEEDS: one run per seed, until the mutant is caught. CHECKS: sequences per world and run (there are four worlds).
set -euo pipefail
cd "$(dirname "$0")/.."

SEEDS=${SEEDS:-"1000000 2000000 3000000"}
CHECKS=${CHECKS:-250}
GO=${GO:-go}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# All runs share one server. The command starts it and runs this script again.
if [[ -z ${ROLLBACKD_TEST_MYSQL_DSN:-} ]]; then
	$GO build -o "$work/with-servers" ./internal/cmd/with-servers
	"$work/with-servers" "$0" "$@"
	exit
fi

# The tree may change meanwhile: all mutants are made of one copy.
mkdir "$work/base"
tar -cf - --exclude=./.git --exclude=./bin --exclude=testdata/rapid . | tar -xf - -C "$work/base"

tree() { cp -r "$work/base" "$1"; }

field() { sed -n "s/^$2: //p" "$1" | head -1; }

row() { printf '%-28s | %-66s | %-9s | %s\n' "$@"; }

# try DIR: 0 when a run fails by a violation; the violation, or what else happened, is in $said.
try() {
	local out seed
	if ! out=$(cd "$1" && $GO test -c -o model.test ./dedup 2>&1); then
		said="does not compile: $(head -3 <<<"$out")"
		return 2
	fi
	for seed in $SEEDS; do
		if out=$(cd "$1/dedup" && ../model.test -test.run '^TestModel$' -test.v -test.timeout 5m \
			-rapid.checks "$CHECKS" -rapid.seed "$seed" -rapid.shrinktime 1ms -rapid.nofailfile 2>&1); then
			said="survived: $(grep -o 'sequences [0-9]*, messages [0-9]*, random steps [0-9]*' <<<"$out"), last seed $seed"
			continue
		fi
		said=$(sed -n 's/^ *model_[a-z_]*.go:[0-9]*: first violation: //p' <<<"$out" | head -1)
		if [[ -z $said ]]; then
			said="failed without a violation: $(grep -m1 -E 'Error |never happened|panic|FAIL' <<<"$out" || true)"
			return 2
		fi
		said="$said (seed $seed)"
		return 0
	done
	return 1
}

bad=0
judge() { # judge NAME GUARD EXPECTED DIR
	local verdict=caught code=0
	try "$4" || code=$?
	case $code in
	1) verdict=survived ;;
	2) verdict=broken ;;
	esac
	row "$1" "$2" "$verdict" "$said"
	if [[ $verdict != "$3" ]]; then
		bad=1
		echo "  ^ expected: $3"
	fi
}

row mutant guard verdict "first violation: by which invariant, after how much"
if (($# == 0)); then
	tree "$work/code"
	judge "(none)" "the code as it stands" survived "$work/code"
	rm -rf "$work/code"
fi
for patch in "$work"/base/scripts/mutants/*.patch; do
	name=$(basename "$patch" .patch)
	if (($# > 0)) && [[ " $* " != *" $name "* ]]; then
		continue
	fi
	dir="$work/$name"
	tree "$dir"
	if ! out=$(patch -p1 --fuzz=0 --forward --no-backup-if-mismatch -d "$dir" <"$patch" 2>&1); then
		row "$name" "$(field "$patch" guard)" broken "the patch no longer applies: $(tail -1 <<<"$out")"
		bad=1
		continue
	fi
	expected=$(field "$patch" expect)
	judge "$name" "$(field "$patch" guard)" "${expected/redundant/survived}" "$dir"
	rm -rf "$dir"
done
exit $bad
