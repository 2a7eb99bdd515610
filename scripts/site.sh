#!/usr/bin/env bash
# Makes the documents' site in the folder of its argument: Hugo makes the pages of docs/site/hugo.toml, Graphviz draws
# the states, and Pagefind makes what the pages search in. Nothing of it is loaded from elsewhere when it is read.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r docs/site/. "$work"
mkdir -p "$work"/{assets,content/docs,data,static}
git ls-files -z '*.md' ':!docs/site' ':!*testdata*' | xargs -0 cp --parents -t "$work/content"
find "$work/content" -name '*.md' -exec sed -i '1{/^<!--.*-->$/d}' {} + # Hugo takes a comment there for its own
git ls-files -z '*.png' '*.svg' ':!*testdata*' | xargs -0 cp --parents -t "$work/static"
cp docs/openapi.json "$work/data"
printf '%s\n' --- 'title: API reference' 'layout: openapi' --- >"$work/content/docs/openapi.md"
{
	echo 'digraph { bgcolor=transparent; nodesep=0.3; ranksep=0.7; node [fontname="sans-serif"]'
	echo 'edge [fontname="sans-serif" fontsize=11]; "[*]" [shape=point width=0.15]'
	sed -nE 's/^ *state "(.*)" as (.*)$/\2 [label="\1"]/p' dedup/testdata/diagram.mmd
	# One arrow for a pair of states, with all that leads along it; what each changes stands in the table of the code.
	sed -nE 's/^ *(\S+) --> (\S+): ([^/]*[^ /])( *\/.*)?$/"\1" -> "\2"\t\3/p' dedup/testdata/diagram.mmd |
		awk -F '\t' '{ of[$1] = of[$1] $2 "\\l" } END { for (pair in of) print pair, "[label=\"" of[pair] "\"]" }' | sort
	echo '}'
} | dot -Tsvg | sed -n '/<svg/,$p' >"$work/assets/states.svg"
rm -rf "$out"
hugo --source "$work" --destination "$out" --quiet
"$(scripts/npm-file.sh pagefind)" --site "$out" --silent >/dev/null
