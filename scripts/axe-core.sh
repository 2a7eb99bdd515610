#!/bin/sh
# Prints where axe-core is, which looks for what people with a disability could not use in a page. The first time it is
# taken from the npm registry into the cache folder of whoever runs this, and checked: it is no part of the repository.
set -eu
version=4.14.1
package_sum=e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
script_sum=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
folder=${XDG_CACHE_HOME:-${HOME:?}/.cache}/rollbackd/axe-core-$version
script=$folder/axe.min.js

right() { echo "$1  $2" | sha256sum --check --status; }

if ! { [ -f "$script" ] && right "$script_sum" "$script"; }; then
	mkdir -p "$folder"
	work=$(mktemp -d "$folder/part.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	npm pack --silent --ignore-scripts --pack-destination "$work" "axe-core@$version" >/dev/null
	if ! right "$package_sum" "$work/axe-core-$version.tgz"; then
		echo "axe-core.sh: the package axe-core@$version is not the one that is known here" >&2
		exit 1
	fi
	tar -xzf "$work/axe-core-$version.tgz" -C "$work"
	mv -f "$work/package/LICENSE" "$folder/LICENSE"
	mv -f "$work/package/axe.min.js" "$script" # at once: whoever else looks sees all of it or nothing
fi
echo "$script"
