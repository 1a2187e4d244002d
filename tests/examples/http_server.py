#!/usr/bin/env python3
"""examples/http_server: the server and its adapter, by curl, wrk, raw sockets and a real Redis. Limits are so slow that
no token comes back meanwhile (5 an hour), so all numbers are exact."""
import os
import re
import signal
import socket
import subprocess
import threading
from collections import Counter

from example import (ROOT, build, check, done, equal, folder, free_port, http, need, redis, said, start, stop,
                     wait_until, wrk)

need([("curl", "curl"), ("wrk", "wrk"), ("redis-server", "redis-server")],
     [("microhttpd.h", "libmicrohttpd-dev"), ("hiredis/hiredis.h", "libhiredis-dev")])
SERVER = build("examples/http_server/server.c")
OPTIONS = build("tests/examples/http_server.c")
FIELDS = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit-policy", "ratelimit"]


def server(*options, **more):
    port = free_port()
    return start(SERVER, "--port", port, *options, port=port, **more), port


def rules_file(name, text):
    path = os.path.join(folder, name)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)
    return path


def curl(*words):
    return subprocess.run(["curl", "-sS", "--max-time", "20", *map(str, words)], text=True, capture_output=True).stdout


def statuses(port, count, *words, parallel=8, path="/"):
    """How many answers of each status curl gets for so many requests, several at a time."""
    text = curl("-Z", "--parallel-max", parallel, "-o", "/dev/null", "-w", "%{http_code}\n", *words,
                f"http://127.0.0.1:{port}{path}?[1-{count}]").split()
    return {status: text.count(status) for status in sorted(set(text))}


def raw(port, sent):
    """What comes back until the server ends the connection, or for so long."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        try:
            connection.sendall(sent)
            while part := connection.recv(65536):
                answer += part
        except OSError as error:
            answer += f" ({error})".encode()
    return answer


def seconds_of(fields, name):
    """The number in a field, -1 if there is none."""
    return int(fields.get(name, "-1"))


def metrics(port):
    _, _, text = http(port, "/metrics")
    return Counter({name: int(value) for name, value in re.findall(rb"^(ratelimit\S+) (\d+)$", text, re.M)})


def wrk_as_new_client(port):
    """As wrk, and what it added to the metrics. Anew, and longer, where a slow machine does not get to a refusal."""
    for attempt, seconds in enumerate((1, 4, 15)):
        before = metrics(port)
        counted = wrk(port, "-H", f"X-Forwarded-For: 192.0.2.{attempt}", seconds=seconds)
        counts = Counter({name: value - before[name] for name, value in metrics(port).items()})
        if counted[1]:
            break
    return *counted, counts


def ends_cleanly(child, what):
    """With leaks found by the sanitizer it would not be 0."""
    equal(f"{what} ends with exit code 0 on SIGTERM", stop(child), 0)


# ---- bad command lines

for words, text in [
        ((), "either --limit or --rules is needed"),
        (("--limit", "1/s", "--rules", "x"), "either --limit or --rules is needed"),
        (("--limit",), "its value is missing"),
        (("--frobnicate", "1"), "unknown option --frobnicate"),
        (("--limit", "ten per second"), '--limit "ten per second": '),
        (("--limit", "1/s\nlogin 1/s"), "--limit"),
        (("--limit", "0/s"), '--limit "0/s": '),
        (("--rules", "/nonexistent/rules"), "/nonexistent/rules: No such file"),
        (("--rules", folder), "directory"),
        (("--rules", rules_file("bad", "default 1/s\nlogin 5 per m\n")), "bad:2:8: "),
        (("--rules", rules_file("huge", "#" * 300000)), "huge: longer than 256 KiB"),
        (("--limit", "1/s", "--port", "65536"), "--port wants a number from 0 to 65535"),
        (("--limit", "1/s", "--port", "-1"), "--port wants a number"),
        (("--limit", "1/s", "--threads", "many"), "--threads wants a number"),
        (("--limit", "1/s", "--bind", "localhost!"), "--bind wants an address"),
        (("--limit", "1/s", "--redis", "localhost"), "--redis wants HOST:PORT"),
        (("--limit", "1/s", "--redis", "localhost:"), "--redis HOST:PORT wants a number"),
        (("--limit", "1/s", "--redis", "localhost:0"), "port 0"),
        (("--limit", "1/s", "--on-failure", "panic"), "--on-failure wants open, closed or local"),
        (("--limit", "1/s", "--trust", "10.0.0.0/33"), "--trust wants a network"),
        (("--limit", "1/s", "--trust", "::ffff:10.0.0.0/95"), "--trust wants a network"),
        (("--limit", "1/s", "--trust", "everyone"), "--trust wants a network"),
]:
    run = subprocess.run([SERVER, *words], text=True, capture_output=True, timeout=20)
    check(f"{' '.join(words)[:60]!r} is refused with its reason and exit code 2",
          run.returncode == 2 and text in run.stderr, (run.returncode, run.stderr[:300]))

# ---- in the process: exact numbers, fields, metrics, skipped paths

child, port = server("--limit", "5/h burst 500", "--trust", "127.0.0.1")
ok, refused, other, wrong, counts = wrk_as_new_client(port)
equal("wrk, 8 connections of 2 threads: exactly the burst is answered 200", ok, 500)
check("the rest 429", refused > 0 and other == 0, (refused, other))
equal("each 429 has Retry-After of at least 1, each 200 has RateLimit and none", wrong, 0)
equal("metrics: allowed is what wrk counted", counts[b"ratelimit_allowed_total"], ok)
check("metrics: refused is what wrk counted, and at most what was under way on its 8 connections at the end",
      refused <= counts[b"ratelimit_refused_total"] <= refused + 8, (refused, counts))

equal("the peer without the field is a client of its own", statuses(port, 500), {"200": 500})
before = metrics(port)
equal("curl, 8 at a time, as another client: exactly 500 and 200",
      statuses(port, 700, "-H", "X-Forwarded-For: 198.51.100.1"), {"200": 500, "429": 200})
after = metrics(port)
equal("metrics count exactly these, in total and for the rule",
      [after[name] - before[name] for name in (b"ratelimit_allowed_total", b"ratelimit_refused_total",
                                               b'ratelimit_rule_allowed_total{rule="default"}',
                                               b'ratelimit_rule_refused_total{rule="default"}')], [500, 200, 500, 200])
equal("and one more client is in the table", after[b"ratelimit_table_keys"] - before[b"ratelimit_table_keys"], 1)

status, fields, text = http(port, "/metrics")
equal("/metrics has Prometheus' content type", (status, fields.get("content-type")),
      (200, "text/plain; version=0.0.4; charset=utf-8"))
check("each of its lines is a comment or a number", re.fullmatch(
    rb'((# (HELP|TYPE) ratelimit_\w+ .+|ratelimit_\w+(\{rule="\w+"\})? \d+)\n)+', text), text[:200])
equal("/metrics and /health are not limited, for a client that is refused",
      (statuses(port, 100, path="/metrics"), statuses(port, 100, path="/health"), statuses(port, 1)),
      ({"200": 100}, {"200": 100}, {"429": 1}))
check("and have no fields of a limit", not any(f in http(port, "/health")[1] for f in FIELDS + ["retry-after"]))
equal("nor were they counted", metrics(port)[b"ratelimit_refused_total"], after[b"ratelimit_refused_total"] + 1)

head = curl("-i", "-H", "X-Forwarded-For: 198.51.100.2", f"http://127.0.0.1:{port}/")
check("the first 200 says limit, remaining, and seconds until full, rounded up", all(
    f"\n{line}\n" in head for line in (
        "X-RateLimit-Limit: 500", "X-RateLimit-Remaining: 499", "X-RateLimit-Reset: 720",
        'RateLimit-Policy: "default";q=500;w=360000', 'RateLimit: "default";r=499;t=720')) and
    "Retry-After" not in head and head.endswith("\n\nhello\n"), head)
status, fields, text = http(port, "/", [("X-Forwarded-For", "198.51.100.1")])
equal("a 429 says the same, and why", (status, fields.get("x-ratelimit-limit"), fields.get("x-ratelimit-remaining"),
                                       fields.get("ratelimit-policy"), fields.get("content-type"), text),
      (429, "500", "0", '"default";q=500;w=360000', "text/plain; charset=utf-8", b"Too many requests\n"))
check("and when: the next token comes within 720 s, the last within 100 h",
      500 < seconds_of(fields, "retry-after") <= 720 and 359000 < seconds_of(fields, "x-ratelimit-reset") <= 360000 and
      fields.get("ratelimit") == f'"default";r=0;t={fields.get("retry-after")}', fields)
check("HEAD is refused with the same fields and no body", re.search(
    r"429 Too Many Requests\n(.*\n)*Retry-After: \d+\n", curl("-I", f"http://127.0.0.1:{port}/")))

# ---- refused bodies, and the connection after them

url = f"http://127.0.0.1:{port}/"
small, large = os.path.join(folder, "small"), os.path.join(folder, "large")
for path, size in ((small, 60000), (large, 8 << 20)):
    with open(path, "wb") as file:
        file.write(b"x" * size)
WRITE = "%{http_code} %{num_connects}\n"
for name, words in (("a GET", ()), ("a POST with a body of 60,000 bytes", ("--data-binary", "@" + small)),
                    ("a PUT", ("-X", "PUT", "-d", "x")), ("a POST without a body", ("-X", "POST", "-d", ""))):
    got = curl(*words, "-o", "/dev/null", "-w", WRITE, url, "-o", "/dev/null", url, "-o", "/dev/null", url)
    equal(f"{name} is refused three times on one connection", got.split(), "429 1 429 0 429 0".split())
equal("a body that curl holds back is refused before it is sent", curl(
    "--data-binary", "@" + large, "-H", "Expect: 100-continue", "-o", "/dev/null", "-w", "%{http_code} %{size_upload}",
    url), "429 0")
answer = raw(port, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
check("a body of unknown length is refused before it comes, and the connection ends",
      answer.startswith(b"HTTP/1.1 429 ") and b"\r\nConnection: close\r\n" in answer, answer)
answer = raw(port, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" * 3 +
             b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
equal("three refused POSTs and a GET sent at once are answered in order",
      re.findall(rb"HTTP/1.1 (\d+) ", answer), [b"429"] * 3 + [b"200"])
before = metrics(port)[b"ratelimit_allowed_total"]
equal("a POST that is let through is read to its end", curl("-H", "X-Forwarded-For: 198.51.100.3", "--data-binary",
                                                           "@" + large, url), "hello\n")
equal("and counted once, however many parts its body came in", metrics(port)[b"ratelimit_allowed_total"], before + 1)

# ---- the client behind proxies, end to end

equal("a peer that is not trusted can't be somebody else", statuses(
    port, 510, "--interface", "127.0.0.2", "-H", "X-Forwarded-For: 203.0.113.[1-2]"), {"200": 500, "429": 10})
equal("addresses of one /64 are one client", [statuses(port, n, "-H", f"X-Forwarded-For: 2001:db8:0:1::{a}")
                                              for n, a in ((500, 1), (1, "ffff:2"))], [{"200": 500}, {"429": 1}])
equal("those of another are not", statuses(port, 1, "-H", "X-Forwarded-For: 2001:db8:0:2::1"), {"200": 1})
child.send_signal(signal.SIGHUP)
check("SIGHUP with --limit changes nothing and says so", wait_until(lambda: "stays as it is" in said(child)), said(child))
ends_cleanly(child, "the server")

# ---- threads: one for each connection, one, a pool; and stopped under load

for threads in (0, 1, 7):
    child, port = server("--limit", "5/h burst 100", "--threads", threads)
    equal(f"--threads {threads}: exactly 100 of 300 on 20 connections", statuses(port, 300, parallel=20),
          {"200": 100, "429": 200})
    load = threading.Thread(target=lambda: subprocess.run(
        ["wrk", "-t2", "-c8", "-d1s", f"http://127.0.0.1:{port}/"], capture_output=True))
    load.start()
    check("load is under way", wait_until(lambda: metrics(port)[b"ratelimit_refused_total"] > 200))
    ends_cleanly(child, f"--threads {threads}: the server under load")
    load.join()

# ---- rules by path; new ones, and broken ones, under load

path = rules_file("rules", "default 5/h burst 100\nlogin 5/h burst 2\n")
child, port = server("--rules", path)
equal("/login, //login/x and /login?y are limited by login, others by default",
      [http(port, p)[1].get("x-ratelimit-remaining") for p in ("/login", "//login/x", "/login?y", "/loginx", "/" + "z" * 100)],
      ["1", "0", "0", "99", "98"])


def reload(text):
    rules_file("rules", text)
    lines = said(child).count("\n")
    child.send_signal(signal.SIGHUP)
    wait_until(lambda: said(child).count("\n") > lines or child.poll() is not None)
    return check("SIGHUP is answered with a line", said(child).count("\n") > lines)


counted = []
load = threading.Thread(target=lambda: counted.append(wrk(port, seconds=2)))
load.start()
for turn in range(30):
    reload(f"default 5/h burst 100\nlogin 5/h burst 3\nother{turn} 1/s\n" if turn % 2 else "default 5/h burst 100\nlogin 1/s x\n")
reload("default 5/h burst 100\nlogin 5/h burst 3\n")
load.join()
equal("rules replaced 16 times and broken 15 times under load: exactly the burst passed, no other status",
      (counted[0][0], counted[0][2], counted[0][3]), (98, 0, 0))
check("each broken text was reported with its line and column",
      said(child).count("rules:2:11: ") == 15 and said(child).count("the rules before stay") == 15, said(child)[-400:])
equal("new rules are in force, and what was spent stays spent",
      [(http(port, "/login")[0], http(port, "/login")[1].get("x-ratelimit-limit"))], [(200, "3")])
rules_file("rules", "login 1000/s\n")
reload("login 5/h burst 3\n")
check("rules without default are warned of", wait_until(lambda: 'no rule "default"' in said(child)), said(child)[-300:])
equal("a path without a rule is not let through", http(port, "/")[0], 500)
ends_cleanly(child, "the server with rules")

# ---- Redis: two servers, one limit; then without it

store, redis_port = redis()
where = f"127.0.0.1:{redis_port}"
REDIS = ("--limit", "5/h burst 500", "--redis", where, "--redis-timeout", 10000, "--trust", "127.0.0.1", "--on-failure")
child, port = server(*REDIS, "open")
closed, closed_port = server(*REDIS, "closed")
local, local_port = server(*REDIS, "local")
ok, refused, other, wrong, counts = wrk_as_new_client(port)
equal("Redis: exactly the burst is answered 200 under wrk", ok, 500)
check("and the rest 429, with right fields", refused > 0 and other == 0 and wrong == 0, (refused, other, wrong))
equal("metrics: allowed is what wrk counted, and Redis never failed",
      (counts[b"ratelimit_allowed_total"], counts[b"ratelimit_failed_total"]), (ok, 0))
equal("two servers are one limit: 300 of 300 here", statuses(port, 300, "-H", "X-Forwarded-For: 127.0.0.5"), {"200": 300})
equal("200 of 300 there", statuses(closed_port, 300, "--interface", "127.0.0.5"), {"200": 200, "429": 100})
check("metrics have no table then", not any(b"table" in name for name in metrics(port)))

stop(store)
equal("Redis gone, --on-failure open: all pass, also who was refused",
      statuses(port, 50, "--interface", "127.0.0.5"), {"200": 50})
equal("closed: all are answered 503", statuses(closed_port, 50), {"503": 50})
status, fields, text = http(closed_port)
equal("with a text and no numbers of a limit", (text, [f for f in FIELDS if f in fields]), (b"Try again later\n", []))
equal("local: the limit holds in this process", statuses(local_port, 510), {"200": 500, "429": 10})
status, fields, text = http(local_port)
check("local: a refusal says when to come again", status == 429 and seconds_of(fields, "retry-after") >= 1, (status, fields))
equal("/health needs no Redis", http(closed_port, "/health")[0], 200)
for one, how in ((child, "let through"), (closed, "refused")):
    lines = re.findall(r"limits not asked, request (.*?): (.+) \(and \d+ more", said(one))
    check(f"one line says that requests are {how}, and why", len(lines) == 1 and lines[0][0] == how and lines[0][1],
          said(one))
equal("metrics count them as failed", [metrics(p)[b"ratelimit_failed_total"] for p in (port, closed_port)], [50, 51])
store = start("redis-server", "--port", redis_port, "--bind", "127.0.0.1", "--save", "", "--dir", folder, port=redis_port)
check("Redis is back: it decides again, without a restart",
      wait_until(lambda: http(closed_port)[0] == 200 and "ratelimit" in http(port)[1]))
for one in (child, closed, local):
    ends_cleanly(one, "the server with Redis")
child, port = server("--limit", "5/h burst 2", "--redis", f"127.0.0.1:{free_port()}")
check("a server starts while Redis is away, and says so", "Redis does not answer yet: " in said(child), said(child))
equal("and lets through", statuses(port, 5), {"200": 5})
ends_cleanly(child, "the server without Redis")

# ---- the adapter's other options, in each threading mode


def options_program(mode, *networks):
    program = start(OPTIONS, mode, *networks)
    wait_until(lambda: said(program).count("\n") >= 2 or program.poll() is not None)
    return program, *(int(p) for p in said(program).split()[:2])


def on_one_connection(port, requests):
    """Status, fields and text of each of (method, path, fields, body)."""
    import http.client
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.connect()
    at, answers = connection.sock.getsockname(), []
    for method, path, fields, body in requests:
        connection.request(method, path, body, fields)
        answer = connection.getresponse()
        answers.append((answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read().decode()))
        check("the connection is still the same", connection.sock and connection.sock.getsockname() == at)
    connection.close()
    return answers


for mode in ("select", "poll", "epoll", "pool", "connection"):
    program, one, two = options_program(mode)
    ann, gold, body = {"X-User": "ann"}, {"X-User": "bob", "X-Plan": "gold"}, b"x" * 50000
    got = on_one_connection(one, [("POST", "/a", ann, body), ("POST", "/a", ann, b"yz"), ("POST", "/a", ann, body),
                                  ("POST", "/plain", ann, b"y"), ("OPTIONS", "/a", ann, None), ("GET", "/a", {}, None),
                                  ("GET", "/a", {"X-User": "u" * 257}, None), ("GET", "/a", {"X-User": "u" * 256}, None),
                                  ("GET", "/a", {}, None)] + [("GET", "/a", gold, None)] * 6)
    equal(f"{mode}: a key function, bodies counted by the handler, its con_cls its own", [g[2] for g in got[:2]],
          ["127.0.0.1 50000 first", "127.0.0.1 2 first"])
    equal(f"{mode}: a handler for refusals: its status, type, text, and the fields",
          (got[2][0], got[2][1].get("content-type"), got[2][2], seconds_of(got[2][1], "retry-after") > 1),
          (420, "application/json", '{"path":"/a","status":429,"limit":2}', True))
    equal(f"{mode}: NULL of it is the usual answer", (got[3][0], got[3][2]), (429, "Too many requests\n"))
    equal(f"{mode}: what is skipped passes, without fields", (got[4][0], "ratelimit" in got[4][1]), (200, False))
    equal(f"{mode}: no key, or one too long, is the address; the longest is a client of its own",
          [g[1].get("x-ratelimit-remaining") for g in got[5:9]], ["1", "0", "1", "0"])
    equal(f"{mode}: a limit function", [g[0] for g in got[9:]], [200] * 5 + [420])
    got = on_one_connection(two, [("POST", "/", {}, b"12345"), ("GET", "/", {}, None), ("POST", "/", {}, b"1234567890")])
    equal(f"{mode}: status, text, chosen fields", (got[2][0], got[2][2], "retry-after" in got[2][1], "ratelimit" in got[2][1],
                                                  got[0][2]), (503, "slow down\n", True, False, "127.0.0.1 5 second"))
    status, fields, _ = http(two, "/", method="POST", body=b"12345678901")
    equal(f"{mode}: a body above drain_bytes ends the connection", (status, fields.get("connection")), (503, "close"))
    ends_cleanly(program, f"{mode}: the program")

# ---- X-Forwarded-For, whatever it holds

program, one, two = options_program("forwarded", "127.0.0.1", "10.0.0.0/8", "192.0.2.7", "2001:db8:1::/48", "::ffff:172.16.0.0/108")
GOOD, PEER = "203.0.113.9", "127.0.0.1"
for lines, client in [
        ((), PEER), ((GOOD,), GOOD), ((f"{GOOD}, 10.1.2.3",), GOOD), ((f"1.2.3.4, {GOOD}, 10.1.2.3, 192.0.2.7",), GOOD),
        ((f"10.9.9.9, {GOOD}",), GOOD), (("10.9.9.9, 10.8.8.8",), "10.9.9.9"), ((f"{GOOD}, 192.0.2.8",), "192.0.2.8"),
        (("1.2.3.4", GOOD, "10.1.2.3"), GOOD), ((GOOD, "10.1.2.3, 10.1.2.4", "10.1.2.5"), GOOD),
        ((f"{GOOD},bad", "10.1.2.3"), "10.1.2.3"), ((f"{GOOD}, unknown",), PEER), ((f"unknown, {GOOD}",), GOOD),
        (("unknown, 10.1.2.3, 10.4.5.6",), "10.1.2.3"), (("",), PEER), ((" ",), PEER), ((",",), PEER), ((",,,,,,",), PEER),
        ((f"{GOOD},",), PEER), ((f"{GOOD},,10.1.2.3",), "10.1.2.3"), ((f",,{GOOD}",), GOOD), ((GOOD, ""), PEER),
        ((f"\t {GOOD} \t,\t10.1.2.3 ",), GOOD), ((f"{GOOD}:443",), GOOD), ((f"{GOOD}:443, 10.1.2.3:80",), GOOD),
        ((f"{GOOD}:",), PEER), ((f"{GOOD}:65536",), PEER), ((f"{GOOD}:1:2",), PEER), ((f"{GOOD}:-1",), PEER),
        (("[2001:db8::5]",), "2001:db8::5"), (("[2001:db8::5]:443",), "2001:db8::5"), (("2001:db8::5",), "2001:db8::5"),
        (("2001:db8::5, 2001:db8:1:ffff::1",), "2001:db8::5"), (("2001:db8::5, 2001:db8:2::1",), "2001:db8:2::1"),
        (("[2001:db8::5",), PEER), (("2001:db8::5]",), PEER), (("[]",), PEER), (("[",), PEER), (("[]:1",), PEER),
        (("[2001:db8::5]x",), PEER), (("[2001:db8::5]:",), PEER), (("[2001:db8::5]:x",), PEER), ((f"[{GOOD}]",), PEER),
        (("[[2001:db8::5]]",), PEER), (("fe80::1%eth0",), PEER), ((f"::ffff:{GOOD}",), GOOD),
        ((f"{GOOD}, ::ffff:10.1.2.3",), GOOD), ((f"{GOOD}, 172.31.255.255",), GOOD), ((f"{GOOD}, 172.32.0.1",), "172.32.0.1"),
        ((f"[::ffff:{GOOD}]:80",), GOOD), ((f"{GOOD} 10.1.2.3",), PEER), ((f"{GOOD};10.1.2.3",), PEER),
        (("0.0.0.0",), "0.0.0.0"), (("010.1.2.3",), PEER), (("10.1.2",), PEER), (("0x0a010203",), PEER), (("167838211",), PEER),
        (("256.1.1.1",), PEER), ((f'"{GOOD}"',), PEER), ((f"for={GOOD}",), PEER), (("%s%n%x",), PEER), (("\x80\xff\xfe",), PEER),
        (("'; DROP TABLE clients; --",), PEER), (("x" * 8000,), PEER), (("1" * 8000,), PEER), ((":" * 8000,), PEER),
        (("[" * 8000,), PEER), (("," * 8000,), PEER), (("," * 8000 + GOOD,), GOOD), (("1.1.1.1," * 1000 + GOOD,), GOOD),
        ((GOOD + ", 10.1.2.3" * 31,), GOOD), ((GOOD,) + ("10.1.2.3",) * 31, GOOD), ((GOOD + ", 10.1.2.3" * 32,), "10.1.2.3"),
        ((GOOD,) + ("10.1.2.3",) * 200, "10.1.2.3"), (("10.7.7.7, " + "10.1.2.3, " * 800 + "10.8.8.8",), "10.1.2.3"),
]:
    status, _, text = http(two, "/", [("x-ForWarded-foR", line) for line in lines])
    equal(f"X-Forwarded-For {' | '.join(lines)[:60]!r} is from {client}", text.decode().split(" ")[0], client)
answer = raw(two, b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: " + b"1.1.1.1," * 20000 + b"\r\n\r\n")
check("160,000 bytes of it are refused by libmicrohttpd", b"HTTP/1.1 200" not in answer and b"timed out" not in answer,
      answer[:200])
equal("and the server goes on", http(two)[0], 200)
ends_cleanly(program, "the program after all this")
with_peer, _, two = options_program("forwarded", "10.0.0.0/8")
equal("from a peer that is not trusted none of it counts",
      http(two, "/", [("X-Forwarded-For", GOOD), ("X-Forwarded-For", "10.1.2.3")])[2], b"127.0.0.1 0 second")
ends_cleanly(with_peer, "the program without a trusted peer")
for network in ("10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/033333", "10.0.0.0/8x", "/8", "", "10.0.0/8", "::/129", "[::1]/64", "1.2.3.4 "):
    run = subprocess.run([OPTIONS, "select", network], text=True, capture_output=True, timeout=20)
    equal(f"{network!r} is no network", (run.returncode, run.stdout), (2, f"no network: {network}\n"))
done()
