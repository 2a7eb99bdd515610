"""Cancels an open order and puts the message of a cancelled one into the outbox, in one transaction, with PyMySQL.

    ORDERS_DSN=shop:shop@127.0.0.1:3306/shop python3 put.py ORDER SKU QUANTITY
"""
import json
import os
import re
import sys

import pymysql

order, sku, quantity = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
user, password, host, port, schema = re.fullmatch(r"(.*?):(.*)@(.*):(\d+)/(.*)", os.environ["ORDERS_DSN"]).groups()
with pymysql.connect(user=user, password=password, host=host, port=int(port), database=schema) as db:
    with db.cursor() as cursor:
        cursor.execute("UPDATE orders SET status = 'cancelled' WHERE order_sn = %s AND status = 'open'", (order,))
        body = json.dumps({"order_sn": order, "items": [{"sku_id": sku, "quantity": quantity}]})
        cursor.execute("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body) SELECT %s, order_sn, %s FROM orders "
                       "WHERE order_sn = %s AND status = 'cancelled'", ("order.cancelled", body, order))
    db.commit()
