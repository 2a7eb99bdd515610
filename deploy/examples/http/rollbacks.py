"""A shop's stock service for handler http, with PyMySQL: it gives stock back, and knows a call again by its key.

    SHOP_DSN=shop:shop@127.0.0.1:3306/shop SHOP_ADDR=127.0.0.1:8090 python3 rollbacks.py
"""
import json
import os
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pymysql

user, password, server, port, schema = re.fullmatch(r"(.*?):(.*)@(.*):(\d+)/(.*)", os.environ["SHOP_DSN"]).groups()


def rollback(key, body):
    """The status of a call. The key and the effect are written in one transaction."""
    try:
        items = [(item["quantity"], item["sku_id"]) for item in json.loads(body)["items"]]
    except (ValueError, TypeError, KeyError):
        return 400
    if not key or not all(type(number) is int for item in items for number in item):
        return 400
    try:
        with pymysql.connect(user=user, password=password, host=server, port=int(port), database=schema) as db:
            with db.cursor() as cursor:
                cursor.execute("INSERT INTO rollback_done (idempotency_key) VALUES (%s)", (key,))
                cursor.executemany("UPDATE tb_stock SET amount = amount + %s WHERE goods_id = %s", items)
            db.commit()
    except pymysql.MySQLError as error:
        # 1062: applied before, and all is well; the others mean that the database is away
        return {1062: 200, 2003: 503, 2006: 503, 2013: 503}.get(error.args[0], 500)
    return 204


class Rollbacks(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(rollback(self.headers.get("Idempotency-Key"), body))
        self.end_headers()


host, port_here = os.environ["SHOP_ADDR"].split(":")
ThreadingHTTPServer((host, int(port_here)), Rollbacks).serve_forever()
