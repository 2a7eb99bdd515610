#!/bin/sh
# Installs RabbitMQ, MariaDB and Redis for the tests, the demo and the benchmark, where they are missing. They are installed as programs only:
# no system service is started, now or later, by this script. The tests run private servers of their own.
#
#	scripts/install-servers.sh [prometheus|browser|zookeeper|galera|haproxy|clock|languages|site]
#
# With the word prometheus, Prometheus and its promtool are installed likewise; with browser, Chromium, a font, and npm,
# by which the tests of the pages get axe-core; with zookeeper, ZooKeeper and a Java; with galera, MariaDB's library for
# clusters, what a node needs to get its data from another one, and HAProxy; with haproxy, that and what lays lines
# between servers; with clock, the library by which a server sees another clock than the machine's; with languages, PHP,
# Java, Python, Node and their drivers for MySQL; with site, Hugo, Graphviz, and npm, by which the site
# gets its search.
set -eu

# have NAME... is true when one of the programs is there. Server programs live in sbin folders, which a normal user's PATH often lacks.
have() {
	for name; do
		case $name in
		/*) for path in $name; do [ -e "$path" ] && return 0; done ;; # a pattern: it must expand
		*) (PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" && command -v "$name") >/dev/null && return 0 ;;
		esac
	done
	return 1
}

missing=
if [ -z "${ROLLBACKD_TEST_AMQP_URL:-}" ]; then
	have '/usr/lib/rabbitmq/bin/rabbitmq-server' '/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server' \
		'/opt/rabbitmq/sbin/rabbitmq-server' rabbitmq-server || missing="$missing rabbitmq-server"
fi
if [ -z "${ROLLBACKD_TEST_MYSQL_DSN:-}" ]; then
	have mariadbd mysqld || missing="$missing mariadb-server"
fi
if [ -z "${ROLLBACKD_TEST_REDIS_URL:-}" ]; then
	have redis-server valkey-server || missing="$missing redis-server"
fi
# needs PROGRAM[:PACKAGE]... notes the packages of those that are not there.
needs() {
	for pair; do
		have "${pair%:*}" || missing="$missing ${pair#*:}"
	done
}

needs curl jq # which the documents' commands want
case ${1:-} in
prometheus) needs prometheus promtool:prometheus ;;
browser) needs chromium /usr/share/fonts/truetype:fonts-dejavu-core npm ;;
zookeeper) needs /usr/share/java/zookeeper.jar:zookeeper java:default-jre-headless ;;
galera) # with a MySQL of ROLLBACKD_TEST_MYSQL_DSN too: the nodes are private
	needs mariadbd:mariadb-server /usr/lib/galera/libgalera_smm.so:galera-4 rsync ss:iproute2 lsof ps:procps haproxy
	;;
clock) needs '/usr/lib/*/faketime/libfaketimeMT.so.1:libfaketime' ;;
languages)
	needs php:php-cli javac:default-jdk-headless /usr/share/java/mariadb-java-client.jar:libmariadb-java \
		/usr/share/java/gson.jar:libgoogle-gson-java node:nodejs /usr/share/nodejs/mysql:node-mysql
	php -m 2>/dev/null | grep -q pdo_mysql || missing="$missing php-mysql"
	/usr/bin/python3 -c 'import pymysql' 2>/dev/null || missing="$missing python3-pymysql"
	;;
site) needs hugo dot:graphviz npm ;;
haproxy) needs haproxy ip:iproute2 ;;
esac
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
	echo "Missing:$missing. Install RabbitMQ 3.10 or newer, MariaDB 10.11 or MySQL 8.0 or newer, and Redis 7 or newer with your package manager," >&2
	echo "or name servers with ROLLBACKD_TEST_AMQP_URL, ROLLBACKD_TEST_MYSQL_DSN and ROLLBACKD_TEST_REDIS_URL." >&2
	exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "Missing:$missing. As root, run: scripts/install-servers.sh${1:+ $1}" >&2
	echo "It runs apt-get install --no-install-recommends$missing and starts no service." >&2
	exit 1
fi

echo "Installing with apt-get:$missing (no service is started)."

# Debian starts a service when it installs it, unless /usr/sbin/policy-rc.d says 101, "forbidden".
policy=/usr/sbin/policy-rc.d
saved=
restore() {
	rm -f "$policy"
	if [ -n "$saved" ]; then
		mv "$saved" "$policy"
	fi
}
trap restore EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
if [ -e "$policy" ] || [ -L "$policy" ]; then
	saved=$policy.before-rollbackd
	mv "$policy" "$saved"
fi
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

export DEBIAN_FRONTEND=noninteractive
apt-get -q update
# shellcheck disable=SC2086 # a list of package names
apt-get -q -y install --no-install-recommends $missing
