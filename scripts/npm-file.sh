#!/bin/sh
# Prints where a file of an npm package is. The first time the package is taken from the npm registry into the cache
# folder of whoever runs this, and checked by its SHA-512: it is no part of the repository.
#
#	scripts/npm-file.sh axe-core   # looks for what people with a disability could not use in a page
#	scripts/npm-file.sh pagefind   # makes the search of the documents' site
set -eu
case $1-$(uname -m) in
axe-core-*)
	package=axe-core version=4.14.1 file=axe.min.js
	sum=1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5
	;;
pagefind-x86_64)
	package=@pagefind/linux-x64 version=1.6.0 file=bin/pagefind_extended
	sum=21b312c7ff95aff5e4d134c194b92380afabbe76ce5c69a66f6fcc2b142ef7d011e43b2a42857734a100f4f433dad021b82663783e71241a78c393790c7202ed
	;;
pagefind-aarch64)
	package=@pagefind/linux-arm64 version=1.6.0 file=bin/pagefind_extended
	sum=48b07623e5ea09999af0dbc81881fc9f229b960288c70e4f9aab15b687d638ac4d1e112d384b1d75ba94fa1b2b35c4f7115d1f68ce9498a0c7548c5c3d8ab6f7
	;;
*)
	echo "npm-file.sh: nobody has tried $1 on $(uname -m)" >&2
	exit 1
	;;
esac
folder=${XDG_CACHE_HOME:-${HOME:?}/.cache}/rollbackd/$1-$version
if ! [ -e "$folder/package/$file" ]; then
	mkdir -p "$folder"
	work=$(mktemp -d "$folder/part.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	npm pack --silent --ignore-scripts --pack-destination "$work" "$package@$version" >/dev/null
	if ! echo "$sum  $(echo "$work"/*.tgz)" | sha512sum --check --status; then
		echo "npm-file.sh: the package $package@$version is not the one that is known here" >&2
		exit 1
	fi
	tar -xzf "$work"/*.tgz -C "$work"
	mv -T "$work/package" "$folder/package" || [ -e "$folder/package/$file" ] # at once; another may have been first
fi
echo "$folder/package/$file"
