#!/bin/sh
# Publishes the cancelled orders of a table, some at a time, and marks those that RabbitMQ has confirmed. It may be
# killed at any point and run again, also twice at once: a message that is published again has no second effect.
# $MYSQL is a client that reads the shop's schema, for example: mysql -h db -u job shop
set -eu
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
while
	$MYSQL -N --raw -e "SELECT id, body FROM cancelled_order WHERE done = 0 ORDER BY id LIMIT 1000" >"$rows" || exit 1
	test -s "$rows"
do
	cut -f 2- "$rows" | rollbackd publish --key-field order_sn
	$MYSQL -e "UPDATE cancelled_order SET done = 1 WHERE id IN ($(cut -f 1 "$rows" | paste -s -d , -))"
done
