#!/usr/bin/env bash
# A package's life on this machine, by the commands of deploy/README.md: install, start, upgrade, remove, purge; with the
# servers that bin/with-servers starts. systemd need not run: what the unit says is then done by hand, and said so. The .rpm has the same life without
# servers, where there is rpm, which may be on a Debian too: with a database of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
skip() { echo "SKIP test-deb: $*"; exit 0; }
[[ $(id -u) == 0 ]] || skip "only root can install packages"
command -v dpkg >/dev/null || skip "this is no Debian"
! dpkg -s rollbackd >/dev/null 2>&1 || skip "rollbackd is installed here already, and is not the test's to remove"
arch=$(dpkg --print-architecture)
work=$(mktemp -d)
daemon=
finish() {
	[[ -z $daemon ]] || kill "$daemon" 2>/dev/null || true
	if dpkg -s rollbackd >/dev/null 2>&1; then dpkg --purge rollbackd >/dev/null 2>&1 || true; fi
	if [[ -d $work/rpm ]]; then
		rpm --force-debian --dbpath "$work/rpm" -e rollbackd >/dev/null 2>&1 || true
		rm -f "$config.rpmsave"
	fi
	rm -rf "$work"
}
trap finish EXIT
fail() { echo "FAIL test-deb: $*" >&2; exit 1; }
say() { echo "test-deb: $*"; }
is() { [[ $2 == "$3" ]] || fail "$1: $2, want $3"; }
config=/etc/rollbackd/rollbackd.env

say "two versions of the package for $arch, and each file's checksum"
for version in 0.0.8 0.0.9; do
	(cd tools/release && go run . -version $version -for "linux/$arch" -out "$work/$version")
	(cd "$work/$version" && sha256sum -c --quiet SHA256SUMS)
done

say "install"
dpkg -i "$work/0.0.8/rollbackd_0.0.8_$arch.deb" >"$work/log" 2>&1 || { cat "$work/log"; fail "dpkg -i"; }
is "version" "$(rollbackd version -o json | sed -n 's/.*"version": "\(.*\)",/\1/p')" v0.0.8
is "settings" "$(stat -c '%U %G %a' $config)" "root rollbackd 640"
getent passwd rollbackd >/dev/null || fail "there is no account rollbackd"
is "shell of the account" "$(getent passwd rollbackd | cut -d: -f7)" /usr/sbin/nologin
if command -v systemd-analyze >/dev/null; then
	systemd-analyze verify /usr/lib/systemd/system/rollbackd.service 2>&1 | grep rollbackd &&
		fail "systemd finds fault with the unit"
	say "systemd-analyze verify finds no fault with the unit"
else
	say "no systemd-analyze here: nobody looked at the unit"
fi
# shellcheck disable=SC1091
bash -c '. /usr/share/bash-completion/completions/rollbackd && declare -F __start_rollbackd >/dev/null' ||
	fail "bash's completion does not load"
[[ $(head -1 /usr/share/zsh/vendor-completions/_rollbackd) == "#compdef rollbackd" ]] || fail "zsh's completion is none"
grep -q "complete -c rollbackd" /usr/share/fish/vendor_completions.d/rollbackd.fish || fail "fish's completion is none"
zcat /usr/share/man/man1/rollbackd-dlq-replay.1.gz | grep -q "rollbackd-dlq-replay - " || fail "there is no man page"

say "start, by the unit's own lines"
[[ $ROLLBACKD_TEST_MYSQL_DSN =~ ^root:(.*)@tcp\(127.0.0.1:(.*)\) ]]
export MYSQL_PWD=${BASH_REMATCH[1]} MYSQL_TCP_PORT=${BASH_REMATCH[2]}
mysql -h127.0.0.1 -uroot -e 'CREATE DATABASE shop'
shop() { mysql -h127.0.0.1 -uroot -N shop -e "$1"; }
port=$((20000 + RANDOM % 10000))
while (: </dev/tcp/127.0.0.1/$port) 2>/dev/null; do port=$((port + 1)); done
cat >$config <<END
ROLLBACKD_AMQP_URL=$ROLLBACKD_TEST_AMQP_URL
ROLLBACKD_MYSQL_DSN='${ROLLBACKD_TEST_MYSQL_DSN}shop'
ROLLBACKD_REDIS_URL=$ROLLBACKD_TEST_REDIS_URL
ROLLBACKD_HTTP_ADDR=127.0.0.1:$port
ROLLBACKD_LOG_FORMAT=json
END
is "settings that were written" "$(stat -c '%U %G %a' $config)" "root rollbackd 640"
unit() { sed -n "s/^$1=//p" /usr/lib/systemd/system/rollbackd.service; }
is "the unit's settings" "$(unit EnvironmentFile)" $config
become() { # takes the place of this shell
	set -a
	# shellcheck disable=SC1090
	. $config
	exec setpriv --reuid="$(unit User)" --regid="$(unit Group)" --init-groups --no-new-privs --inh-caps=-all "$@"
}
as_account() (become "$@")
start() {
	# shellcheck disable=SC2046
	become $(unit ExecStart) </dev/null >>"$work/daemon.log" 2>&1 &
	daemon=$!
	for ((i = 0; i < 120; i++)); do
		as_account rollbackd probe --ready 2>/dev/null && return
		kill -0 $daemon 2>/dev/null || { cat "$work/daemon.log"; fail "the daemon ended"; }
		sleep 0.5
	done
	cat "$work/daemon.log"
	fail "the daemon is not ready after a minute"
}
stop() {
	kill -TERM $daemon
	wait $daemon || fail "the daemon ends with $?"
	daemon=
}
as_account rollbackd migrate >/dev/null 2>"$work/migrate" || { cat "$work/migrate"; fail "migrate"; }
start
is "account of the daemon" "$(stat -c %U /proc/$daemon)" rollbackd
shop "INSERT INTO stock VALUES (1, 5, 0);
	INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) VALUES
	('A-1', 1, 2, 1, UTC_TIMESTAMP(6)), ('A-2', 1, 3, 1, UTC_TIMESTAMP(6))"
released() {
	echo "{\"order_sn\":\"$1\"}" | as_account rollbackd publish --key-field order_sn >/dev/null
	for ((i = 0; i < 120; i++)); do
		[[ $(shop "SELECT amount FROM stock") != "$2" ]] || return 0
		sleep 0.5
	done
	fail "the stock is $(shop "SELECT amount FROM stock") after $1, want $2"
}
released A-1 7

say "upgrade, with settings that were changed, under a daemon that runs"
sum=$(sha256sum $config)
dpkg -i "$work/0.0.9/rollbackd_0.0.9_$arch.deb" </dev/null >"$work/log" 2>&1 || { cat "$work/log"; fail "upgrade"; }
is "settings after the upgrade" "$(sha256sum $config)" "$sum"
is "their rights" "$(stat -c '%U %G %a' $config)" "root rollbackd 640"
is "version" "$(rollbackd version -o json | sed -n 's/.*"version": "\(.*\)",/\1/p')" v0.0.9
kill -0 $daemon || fail "the upgrade ended the daemon, which may only go when the new version has migrated"
released A-2 10
stop
as_account rollbackd migrate >/dev/null 2>&1
start
shop "INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) VALUES
	('A-3', 1, 1, 1, UTC_TIMESTAMP(6))"
released A-3 11
stop

say "remove, then purge"
dpkg -r rollbackd >"$work/log" 2>&1 || { cat "$work/log"; fail "remove"; }
[[ ! -e /usr/bin/rollbackd && -e $config ]] || fail "remove leaves the program, or takes the settings"
dpkg --purge rollbackd >"$work/log" 2>&1 || { cat "$work/log"; fail "purge"; }
[[ ! -e $config && ! -e /etc/rollbackd ]] || fail "purge leaves the settings"
getent passwd rollbackd >/dev/null || fail "purge gives the account's number away"

if command -v rpm >/dev/null; then
	say "the .rpm: install, upgrade with settings that were changed, remove"
	mkdir "$work/rpm"
	of_rpm() { rpm --force-debian --dbpath "$work/rpm" --nodeps "$@" >"$work/log" 2>&1 || { cat "$work/log"; fail "rpm $*"; }; }
	of_rpm -i --ignorearch "$work"/0.0.8/rollbackd-0.0.8-1.*.rpm
	grep -q "write the servers into" "$work/log" || fail "rpm's install does not say what to do"
	is "version" "$(rollbackd version -o json | sed -n 's/.*"version": "\(.*\)",/\1/p')" v0.0.8
	is "settings" "$(stat -c '%U %G %a' $config)" "root rollbackd 640"
	echo "# changed" >>$config
	sum=$(sha256sum $config)
	of_rpm -U --ignorearch "$work"/0.0.9/rollbackd-0.0.9-1.*.rpm
	grep -q "systemctl restart" "$work/log" || fail "rpm's upgrade does not say what to do"
	is "version" "$(rollbackd version -o json | sed -n 's/.*"version": "\(.*\)",/\1/p')" v0.0.9
	is "settings after the upgrade" "$(sha256sum $config)" "$sum"
	of_rpm -e rollbackd
	[[ ! -e /usr/bin/rollbackd && -e $config.rpmsave ]] || fail "rpm -e leaves the program, or takes settings that were changed"
	rm -r /etc/rollbackd
	[[ ! -e /usr/share/doc/rollbackd ]] || fail "rpm -e leaves folders"
else
	say "no rpm here: nobody tried the .rpm"
fi
userdel rollbackd >/dev/null 2>&1 || true # the test's own

[[ -d /run/systemd/system ]] ||
	say "no systemd runs here: the unit's ExecStart was run by hand, with its settings and as its account"
say "passed"
