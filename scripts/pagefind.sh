#!/bin/sh
# Prints where pagefind is, which makes the search of the documents' site. The first time it is taken from the npm
# registry into the cache folder of whoever runs this, and checked.
set -eu
version=1.6.0
case $(uname -m) in
x86_64) arch=x64 sum=21b312c7ff95aff5e4d134c194b92380afabbe76ce5c69a66f6fcc2b142ef7d011e43b2a42857734a100f4f433dad021b82663783e71241a78c393790c7202ed ;;
aarch64) arch=arm64 sum=48b07623e5ea09999af0dbc81881fc9f229b960288c70e4f9aab15b687d638ac4d1e112d384b1d75ba94fa1b2b35c4f7115d1f68ce9498a0c7548c5c3d8ab6f7 ;;
*) echo "pagefind.sh: nobody has tried it on $(uname -m)" >&2; exit 1 ;;
esac
folder=${XDG_CACHE_HOME:-${HOME:?}/.cache}/rollbackd/pagefind-$version
if ! [ -x "$folder/pagefind" ]; then
	mkdir -p "$folder"
	work=$(mktemp -d "$folder/part.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	npm pack --silent --ignore-scripts --pack-destination "$work" "@pagefind/linux-$arch@$version" >/dev/null
	if ! echo "$sum  $work/pagefind-linux-$arch-$version.tgz" | sha512sum --check --status; then
		echo "pagefind.sh: the package @pagefind/linux-$arch@$version is not the one that is known here" >&2
		exit 1
	fi
	tar -xzf "$work/pagefind-linux-$arch-$version.tgz" -C "$work"
	mv -f "$work/package/bin/pagefind_extended" "$folder/pagefind" # at once: whoever else looks sees all of it or nothing
fi
echo "$folder/pagefind"
