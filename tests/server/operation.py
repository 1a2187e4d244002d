"""In operation: metrics, rules that are read again, slow clients, too many, thousands."""
import os
import re
import signal
import socket
import threading
import time

from example import check, equal, http, said, stop, wait_until
from server.common import (Client, FILES, PLAIN, ask, encode, ends_cleanly, free_port, metric, path, resident_kb, server,
                           write)


def is_metric(port, name, wanted, before=0):
    """They are made at most once a second, so it may take a while."""
    return wait_until(lambda: (metric(port, name) or 0) - before == wanted) or metric(port, name)


def metrics(port, metrics_port):
    status, fields, _ = http(metrics_port, "/metrics")
    check("metrics are Prometheus' text", status == 200 and fields["content-type"].startswith("text/plain; version=0.0.4"), fields)
    equal("metrics: other pages, methods, fields without end",
          [http(metrics_port, "/")[0], http(metrics_port, "/metrics?x=1")[0], http(metrics_port, "/metrics", method="POST")[0],
           http(metrics_port, "/metrics", headers=[("X", "y" * 5000)])[0]], [404, 200, 405, 431])
    client = Client(port)
    for _ in range(5):
        client.ask("TAKE", "metrics", "1/h burst 9")
        client.ask("RULE", "login", "metrics")
    client.close()
    equal("what was decided is counted", is_metric(metrics_port, "ratelimit_allowed_total", 7), True)
    equal("what was refused, too, also by rule",
          [is_metric(metrics_port, f"ratelimit_{name}", 3) for name in ("refused_total", 'rule_refused_total{rule="login"}')],
          [True, True])
    check("INFO says the same", b"\r\nallowed:7\r\nrefused:3\r\n" in ask(port, "INFO"), ask(port, "INFO"))
    silent = [socket.create_connection(("127.0.0.1", metrics_port), 20) for _ in range(40)]
    equal("many who say nothing on the port of metrics keep no client away", ask(port, "PING"), "PONG")
    for one in silent:
        one.close()


def reload(child, port, metrics_port):
    client = Client(port)
    client.ask("RULE", "login", "reloaded", 2)
    write("rules", "login 1/h burst 5\nnew 1/h\n")
    child.send_signal(signal.SIGHUP)
    check("SIGHUP reads the rules again", wait_until(lambda: client.ask("PEEK", "reloaded", "@login")[1] == 5))
    equal("what was spent stays spent; a new rule is there, an old one is gone",
          (client.ask("PEEK", "reloaded", "@login")[2], client.ask("RULE", "new", "x")[:3], client.ask("RULE", "old", "x")),
          (3, [1, 1, 0], "ERR there is no such rule, and no rule named default"))
    for number, faulty in enumerate(("login 9/h\nlogin 8/h\n", "login\n", "x 1/h what\n", "\x00", "y 1/h\n" * 60000)):
        write("rules", faulty)
        child.send_signal(signal.SIGHUP)
        check(f"rules with a fault are not taken over: {faulty[:20]!r}", wait_until(
            lambda: said(child).count("not taken over") == number + 1), said(child)[-300:])
        equal("the old ones stay", client.ask("PEEK", "reloaded", "@login")[1:3], [5, 3])
    os.remove(path("rules"))
    child.send_signal(signal.SIGHUP)
    check("nor those of a file that is gone", wait_until(lambda: said(child).count("not taken over") == 6))
    check("the log names file, line and column", "/rules:2:1: " in said(child) and "/rules:1:7: " in said(child), said(child)[-900:])
    equal("reloads are counted", [is_metric(metrics_port, "ratelimit_server_reloads_total", 1),
                                  is_metric(metrics_port, "ratelimit_server_failed_reloads_total", 6)], [True, True])
    client.close()


def is_ended(connection):
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


def half_requests(port, metrics_port):
    half, one = Client(port), socket.create_connection(("127.0.0.1", metrics_port), 20)
    half.send(b"*2\r\n$4\r\nECHO\r\n$9")
    one.sendall(b"GET /metrics HTTP/1.1\r\n")
    began = time.monotonic()
    slowly, count = Client(port), 0
    try:
        for byte in encode(["ECHO", "z" * 4000])[:300]:
            slowly.send(bytes([byte]))
            count += 1
            time.sleep(0.1)
    except OSError:
        pass
    check("a byte now and then does not help", count < 300, count)
    check("it is not cut off before its time", time.monotonic() - began > 2.9, time.monotonic() - began)
    check("who sends half a request is cut off", half.closed())
    check("also on the port of metrics", is_ended(one))
    one.close()
    busy, request = Client(port), encode(["ECHO", "z" * 1000])
    for number in range(40):  # every part ends within a request
        busy.send((request[-500:] if number else b"") + request * 3 + request[:-500])
        for _ in range(3 + (number > 0)):
            busy.answer()
        time.sleep(0.1)
    busy.send(request[-500:])
    equal("who always has half a request under way, but never the same, goes on", len(busy.answer() or b""), 1000)
    busy.close()


def slow_readers(child, port, metrics_port):
    idle, slow = Client(port), Client(port)
    before = resident_kb(child)
    slow.socket.setblocking(False)
    sent = 0
    try:
        while sent < 200_000_000:
            sent += slow.socket.send(b"INFO\r\n" * 1000)
    except BlockingIOError:
        pass
    check("a client that does not take its answers can't send on for ever", sent < 200_000_000, sent)
    equal("others are served meanwhile", idle.ask("PING"), "PONG")
    check("its answers take no memory but what is allowed", resident_kb(child) - before < 4000, resident_kb(child) - before)
    equal("and it is cut off, as those before", is_metric(metrics_port, "ratelimit_server_too_slow_total", 4), True)
    slow.close()
    patient = Client(port)
    patient.send(encode(["TAKE", "patient", "1/h burst 15000"]) * 20000)
    equal("a client may send 20,000 requests before it reads", sum(patient.answer()[0] for _ in range(20000)), 15000)
    patient.close()
    quick, count = Client(port), 30000
    sender = threading.Thread(target=lambda: quick.send(b"INFO\r\n" * count), daemon=True)
    sender.start()
    equal("a client that reads while it sends gets all its answers",
          sum(quick.answer().startswith(b"# Server") for _ in range(count)), count)
    sender.join()
    quick.close()
    equal("a client may be idle for as long as it likes", idle.ask("PING"), "PONG")
    idle.close()


def too_many(port, metrics_port):
    check("those before are gone", wait_until(lambda: b"\r\nconnected_clients:1\r" in ask(port, "INFO")))
    clients = [Client(port) for _ in range(100)]
    equal("as many as are allowed are served", {client.ask("PING") for client in clients}, {"PONG"})
    over = Client(port)
    equal("one more is told that there are too many", (over.answer(), over.closed()), ("ERR max number of clients reached", True))
    equal("the metrics say so all the same", is_metric(metrics_port, "ratelimit_server_turned_away_total", 1), True)
    clients.pop().close()
    check("when one leaves there is room again", wait_until(lambda: ask(port, "PING") == "PONG"))
    for client in clients:
        client.close()


def thousands():
    many = min(5000, FILES - 500)
    child, port = server("--clients", str(many), program=PLAIN)
    equal("a server for many", ask(port, "PING"), "PONG")  # by now it has touched all of its table
    before = resident_kb(child)
    clients = [Client(port) for _ in range(many)]
    for client in clients:
        client.send(encode(["TAKE", "many", f"1/d burst {many - 1000}"]))
    equal(f"{many} connections at once take exactly the burst", sum(client.answer()[0] for client in clients), many - 1000)
    served = (resident_kb(child) - before) * 1024 / many
    check("a client that is served takes some hundred bytes", served < 1500, served)
    request = encode(["ECHO", "x" * 3000])
    for client in clients:
        client.send(request[:-100])
    clients[0].send(request[-100:])
    equal("with half a request of each of them the server goes on", len(clients[0].answer()), 3000)
    half = (resident_kb(child) - before) * 1024 / many
    check("a client with half a request takes that much more", half < 5500, half)
    print(f"{many} clients: {served:.0f} bytes each, {half:.0f} with half a request of 3 KB")
    for client in clients:
        client.close()
    check("when they are gone they are gone", wait_until(lambda: b"\r\nconnected_clients:1\r" in ask(port, "INFO")))
    equal("the server ends", stop(child), 0)


def run():
    metrics_port = free_port()
    child, port = server("--rules", write("rules", "login 1/h burst 2\nold 1/h\n"), "--metrics", f"127.0.0.1:{metrics_port}")
    metrics(port, metrics_port)
    reload(child, port, metrics_port)
    ends_cleanly(child, "a server whose rules were read again")
    metrics_port = free_port()
    child, port = server("--timeout-s", "3", "--clients", "100", "--metrics", f"127.0.0.1:{metrics_port}")
    half_requests(port, metrics_port)
    slow_readers(child, port, metrics_port)
    too_many(port, metrics_port)
    ends_cleanly(child, "a server with slow clients")
    child, port = server("--idle-s", "1")
    idle = Client(port)
    equal("with --idle-s a client may be silent for a while", idle.ask("PING"), "PONG")
    check("and is closed then", idle.closed())
    ends_cleanly(child, "a server that closes idle clients")
    thousands()
