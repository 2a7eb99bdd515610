"""The order service of main.go in Python, with SQL alone.

    ORDERS_DSN=shop:shop@127.0.0.1:3306/shop python3 orders.py place 1 7 2     # or: pay 1, cancel 1
"""
import json
import os
import re
import sys

import pymysql


class TooLate(Exception):
    """The order is not open any more, or its goods went back."""


def one(cursor, statement, *args):
    if cursor.execute(statement, args) != 1:
        raise TooLate(statement)


def put(cursor, tag, order, seconds):
    body = json.dumps({"order_sn": order, "reason": tag})
    cursor.execute("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, due_at) "
                   "VALUES (%s, %s, %s, UTC_TIMESTAMP(6) + INTERVAL %s SECOND)", (tag, order, body, seconds))


def take_back(cursor, tag, order):
    """Removes the message if nobody has taken it up. A row is made first: a DELETE of what is absent locks a gap."""
    cursor.execute("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, owner, next_at) "
                   "VALUES (%s, %s, '', 'cancel', '9999-12-31') ON DUPLICATE KEY UPDATE tries = tries", (tag, order))
    for owner in "owner IS NULL", "owner = 'cancel'":
        if cursor.execute("DELETE FROM rollbackd_outbox WHERE msg_tag = %s AND msg_key = %s AND " + owner, (tag, order)):
            return


def place(cursor, order, sku, quantity):
    one(cursor, "INSERT INTO orders (order_sn) VALUES (%s)", order)
    one(cursor, "INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) "
                "VALUES (%s, %s, %s, 1, UTC_TIMESTAMP(6))", order, sku, quantity)
    cursor.execute("SELECT status FROM stock_reservation FORCE INDEX (PRIMARY) "
                   "WHERE order_sn = %s ORDER BY sku_id FOR UPDATE", (order,))
    if any(status != 1 for (status,) in cursor.fetchall()):
        raise TooLate("the rollback came first")
    one(cursor, "UPDATE stock SET amount = amount - %s, version = version + 1 "
                "WHERE sku_id = %s AND amount >= %s", quantity, sku, quantity)
    put(cursor, "order.timeout", order, 30 * 60)


def pay(cursor, order):
    one(cursor, "UPDATE orders SET status = 'paid' WHERE order_sn = %s AND status = 'open'", order)
    take_back(cursor, "order.timeout", order)
    cursor.execute("SELECT status FROM stock_reservation FORCE INDEX (PRIMARY) "
                   "WHERE order_sn = %s ORDER BY sku_id FOR UPDATE", (order,))
    if any(status in (2, 4) for (status,) in cursor.fetchall()):
        raise TooLate("the goods went back")
    one(cursor, "UPDATE stock_reservation SET status = 3, updated_at = UTC_TIMESTAMP(6) "
                "WHERE order_sn = %s AND status = 1", order)


def cancel(cursor, order):
    one(cursor, "UPDATE orders SET status = 'cancelled' WHERE order_sn = %s AND status = 'open'", order)
    take_back(cursor, "order.timeout", order)
    put(cursor, "order.cancelled", order, 0)


user, password, host, port, schema = re.fullmatch(r"(.*?):(.*)@(.*):(\d+)/(.*)", os.environ["ORDERS_DSN"]).groups()
with pymysql.connect(user=user, password=password, host=host, port=int(port), database=schema) as db:
    with db.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        {"place": place, "pay": pay, "cancel": cancel}[sys.argv[1]](cursor, *sys.argv[2:])
    db.commit()
