#!/bin/sh
# Puts the servers of another Debian release into a folder of its own, as a whole system tree, for tests against other
# versions: ROLLBACKD_TEST_TREE names it then. As root; a few minutes and 2 GB the first time, seconds afterwards.
# usage: scripts/server-tree.sh trixie|sid FOLDER [down]
#   trixie   RabbitMQ 4.0, MariaDB 11.8, Redis 8.0, Valkey 8.1
#   sid      RabbitMQ 4.3, MySQL 9.7, Redis 8.x, Valkey 9.x (whatever Debian's unstable release has that day)
#   down     takes away what was mounted into the tree; the folder may be removed then, and not before.
set -eu
suite=${1:?suite} tree=${2:?folder} todo=${3:-up}
case $suite in
trixie) database=mariadb-server ;;
sid) database=mysql-server ;;
*)
	echo "server-tree.sh: there is no suite $suite: want trixie or sid" >&2
	exit 2
	;;
esac
# The servers run with the tree as their root, and keep their data where the tests keep theirs: in /tmp, at the same path.
mounts="proc dev tmp"

if [ "$todo" = down ]; then
	for m in $mounts; do
		while mountpoint -q "$tree/$m"; do umount "$tree/$m"; done
	done
	exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "server-tree.sh: making a system tree needs root (debootstrap, chroot)" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
if ! command -v debootstrap >/dev/null; then
	apt-get -q update
	apt-get -q -y install --no-install-recommends debootstrap
fi
# The mark is written at the end, so that a tree whose making was cut off is not taken for a whole one.
if [ ! -e "$tree/.made" ]; then
	[ -x "$tree/usr/bin/apt-get" ] || debootstrap --variant=minbase "$suite" "$tree"
	printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d" # no service is started
	chmod 755 "$tree/usr/sbin/policy-rc.d"
fi
cp /etc/hosts /etc/resolv.conf "$tree/etc/" # RabbitMQ looks its own name up
for m in $mounts; do
	mountpoint -q "$tree/$m" || mount --bind "/$m" "$tree/$m"
done
if [ ! -e "$tree/.made" ]; then
	# A mirror may be older than its own date of expiry; the signature is checked all the same.
	chroot "$tree" apt-get -q -o Acquire::Check-Valid-Until=false update
	# Some packages' own scripts want a running system and fail; the programs are there all the same, which is looked at.
	chroot "$tree" apt-get -q -y install --no-install-recommends \
		rabbitmq-server "$database" redis-server valkey-server || true
	for program in lib/rabbitmq/bin/rabbitmq-server bin/redis-server bin/valkey-server; do
		[ -x "$tree/usr/$program" ] || {
			echo "server-tree.sh: $tree has no /usr/$program: see what apt-get says above" >&2
			exit 1
		}
	done
	[ -x "$tree/usr/sbin/mariadbd" ] || [ -x "$tree/usr/sbin/mysqld" ]
	: >"$tree/.made"
fi
chroot "$tree" dpkg-query -W -f '${Package} ${Version}\n' rabbitmq-server 'mariadb-server' 'mysql-server-[0-9]*' \
	mysql-server redis-server valkey-server 2>/dev/null | grep ' .' || true
