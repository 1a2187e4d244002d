#!/usr/bin/env python3
"""examples/http_event_loop: the server, sanitized, with a real Redis that is stopped, continued, killed, started anew.
Limits are so slow that no token comes back meanwhile (5 an hour), so all numbers are exact. Each part asks from an
address of its own, 127.0.0.N, and so has buckets of its own."""
import re
import select
import signal
import socket
import struct
import subprocess

from example import (build, check, done, equal, folder, free_port, need, redis, said, start, stop, wait_until,
                     wrk)

need([("wrk", "wrk"), ("redis-server", "redis-server")],
     [("event2/http.h", "libevent-dev"), ("hiredis/adapters/libevent.h", "libhiredis-dev")])
SERVER = build("examples/http_event_loop/server.c")
NUMBERS = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit-policy", "ratelimit"]
REDIS, REDIS_PORT = redis()


def server(*options, redis_port=REDIS_PORT):
    port = free_port()
    return start(SERVER, "--port", port, "--redis", f"127.0.0.1:{redis_port}", *options, port=port), port


class Client:
    """A connection from 127.0.0.N; requests may be sent long before their answers are read."""

    def __init__(self, port, number):
        self.socket = socket.create_connection(("127.0.0.1", port), 30, (f"127.0.0.{number}", 0))
        self.file = self.socket.makefile("rb")

    def send(self, *paths, close=False):
        end = "Connection: close\r\n\r\n" if close else "\r\n"
        self.socket.sendall("".join(f"GET {path} HTTP/1.1\r\nHost: here\r\n{end}" for path in paths).encode())

    def answer(self):
        """(status, fields with lower-case names), status 0 if there is none."""
        first = self.file.readline().split()
        fields = {}
        while line := self.file.readline().strip():
            name, value = line.decode().split(": ", 1)
            fields[name.lower()] = value
        self.file.read(int(fields.get("content-length", 0)))
        return (int(first[1]) if len(first) > 1 else 0), fields

    def has_answer(self):
        return bool(select.select([self.socket], [], [], 0)[0])

    def close(self, reset=False):
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.file.close()
        self.socket.close()


def ask(port, number, path="/api"):
    client = Client(port, number)
    client.send(path, close=True)
    answer = client.answer()
    client.close()
    return answer


def waiting(port, number, count):
    """So many clients whose request for /api waits for Redis. It comes in one piece with one for /static; when that is
    answered the server has it already."""
    clients = [Client(port, number) for _ in range(count)]
    for client in clients:
        client.send("/static", "/api")
    equal("what comes before a request that waits is answered", [client.answer()[0] for client in clients],
          [200] * count)
    return clients


def answers(clients):
    result = [client.answer() for client in clients]
    for client in clients:
        client.close()
    return result


def statuses(clients):
    return [status for status, _ in answers(clients)]


def remaining(port, number):
    return int(ask(port, number)[1].get("x-ratelimit-remaining", "-1"))


def ends_cleanly(child, what, told=False):
    """With leaks or anything else found by the sanitizers it would not be 0."""
    if not told:
        child.send_signal(signal.SIGTERM)
    try:
        code = child.wait(20)
    except subprocess.TimeoutExpired:
        code = "none"
    equal(f"{what} ends with exit code 0 on SIGTERM", code, 0)
    equal(f"the sanitizers find nothing in {what}", re.findall(r"ERROR: .*|runtime error: .*", said(child)), [])


# ---- bad command lines
for words, text in ((["--limit", "5/x"], "--limit \"5/x\""), ([], "--limit is needed"), (["--limit"], "missing"),
                    (["--limit", "5/h", "--port", "0"], "--port"), (["--limit", "5/h", "--what", "1"], "--what"),
                    (["--limit", "5/h", "--port", "65536"], "--port"), (["--limit", "0/h"], "--limit"),
                    (["--limit", "5/h", "--timeout-ms", "-1"], "--timeout-ms"),
                    (["--limit", "5/h", "--redis", "6379"], "HOST:PORT"), (["--redis", ":1"], "HOST:PORT"),
                    (["--redis", "x" * 300 + ":1"], "HOST:PORT")):
    run = subprocess.run([SERVER, *words], text=True, capture_output=True, timeout=20)
    check(f"{words} ends with 2 and says why", run.returncode == 2 and text in run.stderr and not run.stdout,
          (run.returncode, run.stderr))

# ---- exact numbers, fields
child, port = server("--limit", "5/h burst 40", "--timeout-ms", 20000)
result = [ask(port, 2) for _ in range(38)]
equal("requests within the limit are let through and counted",
      [(status, fields.get("x-ratelimit-remaining"), "retry-after" in fields) for status, fields in result],
      [(200, str(39 - number), False) for number in range(38)])
status, fields = ask(port, 2)
equal("the fields of an answer",
      (status, fields.get("x-ratelimit-limit"), fields.get("x-ratelimit-remaining"), fields.get("ratelimit-policy")),
      (200, "40", "1", '"default";q=40;w=28800'))
equal("the last token of a client", ask(port, 2)[0], 200)
status, fields = ask(port, 2)
check("above the limit it is 429, with when to try again",
      status == 429 and 0 < int(fields.get("retry-after", 0)) <= 720 and fields.get("x-ratelimit-remaining") == "0",
      (status, fields))
equal("another address has tokens of its own", ask(port, 3)[0], 200)
status, fields = ask(port, 2, "/static")
equal("/static is not limited", (status, [name for name in NUMBERS if name in fields]), (200, []))
equal("what is nowhere is 404", ask(port, 2, "/else")[0], 404)
client = Client(port, 4)
client.send("/api", "/api", "/static", "/api")
equal("requests sent together on one connection are answered in turn",
      [client.answer()[1].get("x-ratelimit-remaining") for _ in range(4)], ["39", "38", None, "37"])
client.close()

for seconds in (1, 4, 10):  # longer where a slow machine does not get to a refusal
    counted = wrk(port, seconds=seconds, path="/api")
    if seconds == 1:
        allowed = counted[0]
    if counted[1] > 0:
        break
check("under wrk exactly the burst is let through, the rest is 429, all with the right fields",
      allowed == 40 and counted[1] > 0 and counted[2:] == (0, 0), counted)
print(f"wrk: {allowed} let through, {counted[1]} refused in {seconds} s")

# ---- a slow Redis delays only who waits for it
REDIS.send_signal(signal.SIGSTOP)
clients = waiting(port, 5, 20)
fast = [ask(port, 6, "/static")[0] for _ in range(50)]
equal("50 requests for /static are answered while 20 for /api wait, none of which is",
      (fast, [client.has_answer() for client in clients]), ([200] * 50, [False] * 20))
REDIS.send_signal(signal.SIGCONT)
result = answers(clients)
equal("when Redis goes on they get its answers",
      ([status for status, _ in result], sorted(int(fields.get("x-ratelimit-remaining", -1)) for _, fields in result)),
      ([200] * 20, list(range(20, 40))))
ends_cleanly(child, "the server")

# ---- clients that leave while they wait; more of them than are allowed to wait; the end while they wait
child, port = server("--limit", "5/h burst 1000", "--timeout-ms", 20000, "--max-requests", 120)
REDIS.send_signal(signal.SIGSTOP)
clients = waiting(port, 7, 100)
for index, client in enumerate(clients):
    if index % 3 == 0:
        client.send("/api", "/static")
    client.close(reset=index % 2 == 0)
equal("the server stays", ask(port, 6, "/static")[0], 200)
clients = waiting(port, 8, 20)
result = [ask(port, 8) for _ in range(5)]
equal("more than --max-requests are refused at once, without a limit's fields",
      ([(status, fields.get("retry-after")) for status, fields in result],
       [name for name in NUMBERS for _, fields in result if name in fields]), ([(503, "1")] * 5, []))
REDIS.send_signal(signal.SIGCONT)
equal("those before them are answered", statuses(clients), [200] * 20)
left = remaining(port, 7)
check("what 100 clients asked who left was decided, once each", 899 - 34 <= left <= 899, left)  # 34 asked twice
equal("and what was refused for being too much was not", remaining(port, 8), 1000 - 20 - 1)

REDIS.send_signal(signal.SIGSTOP)
clients, gone = waiting(port, 9, 20), waiting(port, 9, 20)
for client in gone:
    client.close(reset=True)
idle = Client(port, 9)
child.send_signal(signal.SIGTERM)
result = answers(clients)
equal("who waits when the server ends is told so, once",
      [(status, fields.get("connection")) for status, fields in result], [(503, "close")] * 20)
equal("a connection where nothing was asked is closed", idle.answer()[0], 0)
idle.close()
ends_cleanly(child, "a server whose requests wait", told=True)
REDIS.send_signal(signal.SIGCONT)

# ---- Redis fails: the policy answers, in time, and the log is not flooded
for closed in (False, True):
    child, port = server("--limit", "5/h burst 1000", "--timeout-ms", 200, *(["--fail-closed"] if closed else []))
    number = 10 + closed
    equal("Redis works", remaining(port, number), 999)
    REDIS.send_signal(signal.SIGSTOP)
    clients = waiting(port, number, 10)
    gone = waiting(port, number, 10)
    for client in gone:
        client.close()
    equal("who waits for a Redis that does not answer is answered by policy", statuses(clients),
          [503 if closed else 200] * 10)
    result = [ask(port, number) for _ in range(30)]
    equal("later ones too, without numbers that nobody knows, and with when to try again if refused",
          ([(status, "retry-after" in fields) for status, fields in result],
           [name for name in NUMBERS for _, fields in result if name in fields]),
          ([(503, True) if closed else (200, False)] * 30, []))
    REDIS.send_signal(signal.SIGCONT)
    check("when Redis goes on it is asked again", wait_until(lambda: remaining(port, number) > 0))
    lines = re.findall(r"Redis: .*; requests are (.*) \(", said(child))
    check("the log says so, at most once a minute",
          lines and lines == ["refused" if closed else "let through"] * len(lines) and len(lines) < 3, said(child))
    if not closed:
        equal("Redis is killed", stop(REDIS, signal.SIGKILL), -signal.SIGKILL)
        equal("without it requests are let through", [ask(port, number)[0] for _ in range(5)], [200] * 5)
        REDIS = start("redis-server", "--port", REDIS_PORT, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                      "--dir", folder, port=REDIS_PORT)
        check("one started in its place is found, and is empty", wait_until(lambda: remaining(port, 12) == 999))
    ends_cleanly(child, "a server whose Redis failed")

# ---- without any Redis it starts, and ends
child, port = server("--limit", "5/h", "--fail-closed", redis_port=free_port())
status, fields = ask(port, 2)
equal("a server that finds no Redis runs and refuses", (status, ask(port, 2, "/static")[0]), (503, 200))
ends_cleanly(child, "a server without Redis")
done()
