#!/usr/bin/env python3
"""examples/server: the server, sanitized, under redis-cli, ioredis, a hiredis program and raw sockets. Decisions are
compared with an oracle of exact fractions, at times that the check sets (server_clock.c). Where the real clock runs,
limits are so slow that no token comes back meanwhile, so all numbers are exact."""
import math
import mmap
import os
import random
import re
import resource
import shlex
import signal
import socket
import struct
import subprocess
import threading
import time
from fractions import Fraction

import example
from example import (BUILD, ROOT, SANITIZERS, build, check, done, equal, folder, free_port, head_lines, http, need, said,
                     start, stop, wait_until)

need([("redis-cli", "redis-tools"), ("redis-benchmark", "redis-tools"), ("node", "nodejs")],
     [("event2/event.h", "libevent-dev"), ("hiredis/hiredis.h", "libhiredis-dev")])
NODE = {**os.environ, "NODE_PATH": os.pathsep.join(filter(None, [
    os.path.join(os.path.dirname(BUILD), "node", "node_modules"), os.environ.get("NODE_PATH")]))}
if subprocess.run(["node", "-e", "require('ioredis')"], env=NODE, capture_output=True).returncode:
    example.missing("ioredis", "npm package ioredis")

SERVER = build("examples/server/main.c")
PLAIN = build("examples/server/main.c", out="ratelimit_server_plain", sanitized=False)
CLIENT = build("tests/examples/server_client.c")
CLOCK = build("tests/examples/server_clock.c", sanitized=False)
SECOND = 10**9
SEED = int(os.environ.get("SEED", random.randrange(10**9)))
print(f"SEED={SEED}")

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
FILES = min(hard, 12000)
resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))


def path(name):
    return os.path.join(folder, name)


def write(name, words):
    with open(path(name) + ".new", "w", encoding="utf-8") as file:
        file.write(words)
    os.replace(path(name) + ".new", path(name))
    return path(name)


def server(*options, program=SERVER, **more):
    port = free_port()
    return start(program, "--listen", f"127.0.0.1:{port}", *options, port=port, **more), port


def ends_cleanly(child, what):
    """With leaks or anything else found by the sanitizers it would not be 0."""
    equal(f"{what} ends with exit code 0 on SIGTERM", stop(child), 0)
    equal(f"the sanitizers find nothing in {what}", re.findall(r"ERROR: .*|runtime error: .*", said(child)), [])


# ---- a client

class Failed(str):
    """An error that the server answered."""


def encode(words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Client:
    def __init__(self, where, timeout=20):
        self.socket = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
        self.socket.settimeout(timeout)
        self.socket.connect(where if isinstance(where, str) else ("127.0.0.1", where))
        if not isinstance(where, str):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def send(self, data):
        self.socket.sendall(data)

    def answer(self):
        """One answer; None if the connection is closed."""
        try:
            line = self.file.readline()
        except ConnectionResetError:
            return None
        if not line.endswith(b"\r\n"):
            return None
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return Failed(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        raise ValueError(line)

    def ask(self, *words):
        self.send(encode(words))
        return self.answer()

    def closed(self):
        """True if nothing comes any more."""
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self):
        self.file.close()
        self.socket.close()


def ask(where, *words):
    client = Client(where)
    answer = client.ask(*words)
    client.close()
    return answer


def metric(port, name):
    found = re.search(rf"^{re.escape(name)} (\d+)$", http(port, "/metrics")[2].decode(), re.M)
    return int(found.group(1)) if found else None


def resident_kb(child):
    with open(f"/proc/{child.pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))


# ---- bad command lines, files that are not usable
rules = write("faulty", "login 5/m\napi 5/minute\n")
for words, code, text in (
        (["--what", "1"], 2, "unknown option --what"), (["--keys"], 2, "missing"), (["--keys", "0"], 2, "--keys"),
        (["--keys", "1k"], 2, "--keys"), (["--keys", "99999999999999999999"], 2, "--keys"), (["--clients", "-1"], 2, "--clients"),
        (["--listen", "6380"], 2, "ADDRESS:PORT"), (["--listen", "127.0.0.1:0"], 2, "ADDRESS:PORT"),
        (["--listen", "127.0.0.1:65536"], 2, "ADDRESS:PORT"), (["--listen", "nowhere:1"], 2, "no address"),
        (["--listen", "unix:"], 2, "unix:PATH"), (["--listen", "unix:" + "x" * 200], 2, "unix:PATH"),
        (["--listen", "unix:/dev/null"], 1, "no socket"), (["--listen", "192.0.2.1:6380"], 1, "192.0.2.1"),
        (["--listen", "127.0.0.1:1"] * 5, 2, "at most 4"), (["--when-full", "refuse"], 2, "--when-full"),
        (["--rules", path("absent")], 2, "absent: No such file"), (["--rules", rules], 2, "faulty:2:8: not a limit"),
        (["--password-file", path("absent")], 2, "absent"), (["--password-file", write("empty", "\n")], 2, "empty"),
        (["--file", rules], 1, "left as it is"), (["--file", "/dev/null"], 1, "left as it is"),
        (["--file", path("absent/x")], 1, "absent/x")):
    run = subprocess.run([SERVER, *words], text=True, capture_output=True, timeout=60)
    check(f"{words} ends with {code} and says why", run.returncode == code and text in run.stderr and not run.stdout,
          (run.returncode, run.stderr[-500:]))
run = subprocess.run([SERVER, "--help"], text=True, capture_output=True, timeout=20)
check("--help lists the options", run.returncode == 0 and run.stdout.startswith("usage:"), run)


# ---- decisions are those of exact arithmetic

def up(ns, unit):
    return math.ceil(Fraction(ns) / unit)


class Oracle:
    """The token bucket as one time, in fractions of a ns; by key and limit."""

    def __init__(self):
        self.full = {}

    def decide(self, op, key, limit, n, now, most_ns=0, changes=True):
        """(allowed, burst, remaining, ns until full, ns to wait, status); -1: never."""
        count, per, burst = limit
        interval = Fraction(per, count)
        window, cost = burst * interval, n * interval
        debt = max(Fraction(0), self.full.get((key, limit), Fraction(0)) - now)
        wait, status, after = Fraction(0), "OK", debt
        if op in ("TAKE", "PEEK", "RESERVE") and n > burst:
            wait, status = -1, "NEVER"
        elif op in ("TAKE", "PEEK"):
            if debt + cost > window:
                wait, status = debt + cost - window, "DENIED"
            elif op == "TAKE":
                after = debt + cost
        elif op == "RESERVE":
            wait = max(Fraction(0), debt + cost - window)
            if math.ceil(wait) > most_ns:
                status = "TIMEOUT"
            else:
                after = debt + cost
        elif op == "CHARGE":
            after = debt + cost
            wait = max(Fraction(0), after + interval - window)
        elif op == "REFUND":
            after = max(Fraction(0), debt - cost)
        elif op == "RESET":
            after = Fraction(0)
        if changes and after != debt:
            self.full[key, limit] = now + after
        remaining = max(0, math.floor((window - after) / interval))
        return int(status == "OK"), burst, remaining, after, wait, status

    def answer(self, *what, **more):
        allowed, burst, remaining, full, wait, status = self.decide(*what, **more)
        return [allowed, burst, remaining, up(full, 10**6), -1 if wait == -1 else up(wait, 10**6), status]

    def throttle(self, cell, key, limit, n, now):
        """throttlecrab's five, or redis-cell's."""
        allowed, burst, remaining, full, wait, _ = self.decide("TAKE" if n else "PEEK", key, limit, n or 1, now)
        if not n and full <= burst * Fraction(limit[1], limit[0]):
            allowed = 1
        full, wait = up(full, SECOND), -1 if wait == -1 else up(wait, SECOND)
        if cell:
            return [1 - allowed, burst, remaining, -1 if allowed else wait, full]
        return [allowed, burst, remaining, full, 0 if allowed else wait]

    def all_or_none(self, asked, now):
        """Of each request: allowed, ms to wait, status."""
        before, answers = dict(self.full), []
        for key, limit, n in asked:
            answers.append(self.decide("TAKE", key, limit, n, now))
        if all(a[0] for a in answers):
            return [[1, 0, "OK"]] * len(asked)
        self.full = before
        refused = [a[4] for a in answers if not a[0]]
        longest = -1 if -1 in refused else max(refused)
        return [[0, -1 if w == -1 else up(w, 10**6), a[5] if not a[0] else "SKIPPED"]
                for a in answers for w in [a[4] if not a[0] else longest]]


UNITS = {"ms": 10**6, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86400 * SECOND}


def with_set_clock(decide, *options):
    """Runs decide(client, set_time) on a server whose clock is set by set_time."""
    with open(path("clock"), "w+b") as file:
        file.truncate(4096)
        memory = mmap.mmap(file.fileno(), 4096)

        def set_time(ns):
            struct.pack_into("<Q", memory, 0, ns)

        set_time(10**18)
        os.environ.update(LD_PRELOAD=CLOCK, SERVER_CLOCK=path("clock"))
        child, port = server(*options, program=PLAIN)
        del os.environ["LD_PRELOAD"]
        client = Client(port)
        decide(client, set_time)
        client.close()
        equal("a server with a set clock ends with exit code 0", stop(child), 0)


def random_limit(rng):
    count, unit = rng.choice([1, 2, 3, 5, 7, 10, 60, 97, 1000]), rng.choice(list(UNITS))
    times = rng.choice([1, 1, 2, 5, 30])
    burst = rng.choice([1, 2, 3, 10, 50, count])
    return f"{count}/{times}{unit} burst {burst}", (count, times * UNITS[unit], burst)


def compare(client, set_time):
    rng = random.Random(SEED)
    oracle = Oracle()
    now = 10**18
    texts = [random_limit(rng) for _ in range(12)]
    numbers = [(rng.choice([1, 3, 7, 60, 1000]), rng.choice([1, 10, 60, 3600]) * SECOND, rng.choice([1, 2, 5, 40]))
               for _ in range(6)]
    wrong, compared = [], 0
    for _ in range(400):
        step = rng.choice([0, 1, 1000, 10**6, SECOND, 60 * SECOND, rng.randrange(100 * SECOND)])
        now += step
        set_time(now)
        requests, wanted = [], []
        for _ in range(25):
            key = rng.choice("abcd")
            n = rng.choice([1, 1, 1, 2, 3, 7, 60])
            kind = rng.randrange(10)
            if kind < 4:
                count, per, burst = limit = rng.choice(numbers)
                cell = kind % 2
                n = rng.choice([n, 0])
                requests.append(["CL.THROTTLE" if cell else "throttle", key, burst - cell, count, per // SECOND]
                                + ([] if n == 1 else [n]))
                wanted.append(oracle.throttle(cell, key, limit, n, now) if burst - cell >= 0 else None)
            elif kind < 9:
                text, limit = rng.choice(texts)
                op = rng.choice(["TAKE"] * 6 + ["PEEK", "RESERVE", "CHARGE", "REFUND", "RESET"])
                ms = rng.choice([0, 1, 50, 5000, 10**7])
                words = [op, key, text] + ([ms] if op == "RESERVE" else []) + ([] if n == 1 or op == "RESET" else [n])
                if op == "CHARGE" and n > 10:
                    words[-1] = n = 10
                requests.append(words)
                wanted.append(oracle.answer(op, key, limit, n, now, most_ns=ms * 10**6))
            else:
                asked = [(rng.choice("abcd"), *rng.choice(texts), rng.choice([1, 1, 2])) for _ in range(rng.randrange(1, 9))]
                requests.append(["TAKEALL"] + [word for key, text, _, n in asked for word in (key, text, n)])
                wanted.append(("all", oracle.all_or_none([(key, limit, n) for key, _, limit, n in asked], now)))
        client.send(b"".join(encode(words) for words in requests))
        for words, want in zip(requests, wanted):
            got = client.answer()
            if isinstance(want, tuple):
                want, got = want[1], [[a[0], a[4], a[5]] for a in got]
            compared += 1
            if got != want:
                wrong.append((now, words, got, want))
    equal(f"{compared} random decisions are those of exact arithmetic; SEED={SEED}; the first that is not", wrong[:1], [])


def boundaries(client, set_time):
    start_ns = 10**18
    rows = []
    for ns, *words in ((0, "TAKE", "k", "7/s", 7), (142857142, "TAKE", "k", "7/s"), (142857143, "TAKE", "k", "7/s"),
                       (1142857142, "TAKE", "k", "7/s", 7), (1142857143, "TAKE", "k", "7/s", 7),
                       (10**10, "BLOCK", "k", "7/s", 1500), (10**10 + 1, "TAKE", "k", "7/s"),
                       (10**10 + 1, "REFUND", "k", "7/s", 7), (11499999999, "PEEK", "k", "7/s"),
                       (11500000000, "TAKE", "k", "7/s"), (11500000000, "TAKE", "k", "7/s"),
                       (20 * SECOND, "TAKE", "k", "3/10s window", 3), (29999999999, "TAKE", "k", "3/10s window"),
                       (30 * SECOND, "TAKE", "k", "3/10s window"), (30 * SECOND, "TAKE", "u", "unlimited", 10**18)):
        set_time(start_ns + ns)
        rows.append(client.ask(*words)[:1] + [words[0]])
    equal("decisions at the very ns at which tokens come back, blocks end and windows turn",
          rows, [[1, "TAKE"], [0, "TAKE"], [1, "TAKE"], [0, "TAKE"], [1, "TAKE"], [1, "BLOCK"], [0, "TAKE"], [1, "REFUND"],
                 [0, "PEEK"], [1, "TAKE"], [0, "TAKE"], [1, "TAKE"], [0, "TAKE"], [1, "TAKE"], [1, "TAKE"]])
    set_time(start_ns + 40 * SECOND)
    equal("redis-cell's answers, from empty to refused and never",
          [client.ask("CL.THROTTLE", "r", 4, 1, 1, n) for n in (6, 1, 4, 1, 0)],
          [[1, 5, 5, -1, 0], [0, 5, 4, -1, 1], [0, 5, 0, -1, 5], [1, 5, 0, 1, 5], [0, 5, 0, -1, 5]])
    equal("throttlecrab's", [client.ask("THROTTLE", "t", 5, 1, 1, n) for n in (6, 1, 4, 1, 0)],
          [[0, 5, 5, 0, -1], [1, 5, 4, 1, 0], [1, 5, 0, 5, 0], [0, 5, 0, 5, 1], [1, 5, 0, 5, 0]])
    equal("a key with as much in debt as reservations reach", client.ask("RESERVE", "t", "1/s burst 5", 60000, 3),
          [1, 5, 0, 8000, 3000, "OK"])
    equal("quantity 0 is refused where more than the burst is owed", client.ask("THROTTLE", "t", 5, 1, 1, 0), [0, 5, 0, 8, 4])
    equal("a reservation that would have to wait too long", client.ask("RESERVE", "t", "1/s burst 5", 3999, 1),
          [0, 5, 0, 8000, 4000, "TIMEOUT"])
    equal("unlimited", client.ask("TAKE", "u", "unlimited"), [1, -1, -1, 0, 0, "OK"])


with_set_clock(compare)
with_set_clock(boundaries, "--file", path("clocked"))

# ---- real clients
PASSWORD = "s3cret word"
RULES = write("rules", "login 1/h burst 2\nlogin|vip 1/h burst 9\nshadow 1/h shadow\n")
METRICS, LOCKED = free_port(), free_port()
child, port = server("--listen", f"unix:{path('socket')}", "--listen", f"127.0.0.1:{LOCKED}", "--rules", RULES,
                     "--metrics", f"127.0.0.1:{METRICS}", unix=path("socket"))
locked, LOCKED = server("--password-file", write("password", PASSWORD + "\n"))


def cli(*words, where=None, stdin=""):
    run = subprocess.run(["redis-cli", *(where or ["-p", str(port)]), *map(str, words)], input=stdin, text=True,
                         capture_output=True, timeout=20)
    return re.sub(r"\d{6,}", "many", run.stdout.strip().replace("\n", " "))  # ms that have passed in part


equal("redis-cli", [cli("PING"), cli("ECHO", "a b"), cli("THROTTLE", "cli", 3, 1, 3600), cli("CL.THROTTLE", "cli2", 3, 1, 3600),
                    cli("TAKE", "cli3", "1/h burst 3", 2), cli("RULE", "login", "cli"), cli("RULE", "login", "vip"),
                    cli("RULE", "nothing", "x"), cli("BLOCK", "cli", "@login", 7200000), cli("RULE", "login", "cli"),
                    cli("RESET", "cli", "@login"), cli("PEEK", "cli", "@login", 2)],
      ["PONG", "a b", "1 3 2 3600 0", "0 4 3 -1 3600", "1 3 1 many 0 OK", "1 2 1 many 0 OK", "1 9 8 many 0 OK",
       "ERR there is no such rule, and no rule named default", "1 2 0 many many OK",
       "0 2 0 many many DENIED", "1 2 2 0 0 OK", "1 2 2 0 0 OK"])
equal("redis-cli over a unix socket, many commands", cli(where=["-s", path("socket")],
                                                        stdin="TAKE many 1/h\nTAKE many 1/h\nRESET\nSELECT 0\n"),
      "1 1 0 many 0 OK 0 1 0 many many DENIED RESET OK")
equal("redis-cli with a password", [cli("PING", where=["-p", str(LOCKED)]),
                                    cli("PING", where=["-p", str(LOCKED), "--no-auth-warning", "-a", PASSWORD]),
                                    cli("PING", where=["-p", str(LOCKED), "--no-auth-warning", "--user", "default",
                                                       "-a", PASSWORD])],
      ["NOAUTH Authentication required.", "PONG", "PONG"])
check("a wrong password is refused", "WRONGPASS" in cli("AUTH", PASSWORD + "x", where=["-p", str(LOCKED)]))
equal("before the password nothing is decided, and hardly anything said",
      [str(ask(LOCKED, *words))[:6] for words in (["THROTTLE", "a", 1, 1, 1], ["INFO"], ["COMMAND"], ["ECHO", "x"],
                                                  ["RESET", "a", "1/s"], ["HELLO"], ["HELLO", "2"])], ["NOAUTH"] * 7)
equal("HELLO with and without a password", [
    ask(LOCKED, "HELLO", "2", "AUTH", "default", PASSWORD, "SETNAME", "me")[0],
    ask(LOCKED, "HELLO", "2", "AUTH", "default", "no")[:9], ask(port, "HELLO", "3")[:7], ask(port, "HELLO")[4:6],
    ask(port, "HELLO", "2", "AUTH", "default", "x")[:9], ask(port, "HELLO", "2", "WHAT")[:10]],
      [b"server", "WRONGPASS", "NOPROTO", [b"proto", 2], "ERR AUTH:", "ERR syntax"])
run = subprocess.run([CLIENT, str(port), path("socket")], text=True, capture_output=True, timeout=60)
equal("a hiredis program", (run.returncode, run.stdout, run.stderr), (0, "ok\n", ""))
run = subprocess.run(["node", os.path.join(ROOT, "tests/examples/server_client.js"), str(port), path("socket"),
                      str(LOCKED), PASSWORD], text=True, capture_output=True, timeout=60, env=NODE)
equal("ioredis", (run.returncode, run.stdout, run.stderr), (0, "ok\n", ""))
run = subprocess.run(["redis-benchmark", "-p", str(port), "-n", "20000", "-P", "16", "-c", "20", "-q", "TAKE", "bench",
                      "1/d burst 500"], text=True, capture_output=True, timeout=60)
check("redis-benchmark", run.returncode == 0 and "requests per second" in run.stdout, run)
equal("what 20 connections of redis-benchmark took is exact", ask(port, "PEEK", "bench", "1/d burst 500")[2], 0)
client = Client(port)
names = client.ask("COMMAND")
equal("COMMAND lists as many as COMMAND COUNT", len(names), client.ask("COMMAND", "COUNT"))
for name, arity, _, key, last, step in names:
    check(f"{name.decode()} knows its arguments", (key == 0) == (step == 0) and arity != 0, (arity, key, last, step))
equal("a wrong number of arguments", [client.ask("THROTTLE", "a", 1, 1), client.ask("PING", 1, 2), client.ask("take")],
      [f"ERR wrong number of arguments for '{name}'" for name in ("THROTTLE", "PING", "TAKE")])
for words, text in (
        (["THROTTLE", "a", "-1", 1, 1], "whole numbers"), (["THROTTLE", "a", 1, 1, 1, "-1"], "whole numbers"),
        (["THROTTLE", "a", 1, 1, "1.5"], "whole numbers"), (["THROTTLE", "a", 1, "", 1], "whole numbers"),
        (["THROTTLE", "a", 2**63, 1, 1], "whole numbers"), (["THROTTLE", "a", 0, 1, 1], "no limit"),
        (["THROTTLE", "a", 1, 0, 1], "no limit"), (["THROTTLE", "a", 1, 1, 0], "no limit"),
        (["CL.THROTTLE", "a", 1, 1, 2**62], "no limit"), (["CL.THROTTLE", "a", 2**63 - 2, 1, 10], "no limit"),
        (["THROTTLE", "", 1, 1, 1], "key is empty"), (["TAKE", "", "1/s"], "key is empty"),
        (["TAKE", "a", "1/s", 0], "number of tokens"), (["TAKE", "a", "1/s", "x"], "number of tokens"),
        (["TAKE", "a", "1/s", 2**63], "number of tokens"), (["TAKE", "a", "10 per second"], "a limit is"),
        (["TAKE", "a", ""], "a limit is"), (["TAKE", "a", "0/s"], "a limit is"), (["TAKE", "a", "1/s\0"], "a limit is"),
        (["TAKE", "a", "1/s burst " + "1" * 60], "a limit is"), (["TAKE", "a", "@"], "no such rule"),
        (["TAKE", "a", "@" + "x" * 64], "1 to 63 bytes"), (["TAKE", "a", "@lo\0gin"], "1 to 63 bytes"),
        (["RULE", "", "a"], "no such rule"), (["BLOCK", "a", "1/s", 0], "146 years"),
        (["BLOCK", "a", "1/s", 10**13], "146 years"), (["RESERVE", "a", "1/s", "x"], "number of ms"),
        (["BLOCK", "a", "unlimited", 5], "can't do that"), (["REFUND", "a", "1/s window", 1], "can't do that"),
        (["TAKEALL", "a", "1/s", 1, "b"], "TAKEALL wants"), (["TAKEALL", "a", "1/s", 1, "b", "@login", 1], "or none"),
        (["TAKEALL"] + ["a", "1/s", 1] * 9, "wrong number"), (["SELECT", "1"], "out of range"),
        (["CLIENT", "KILL"], "subcommand"), (["COMMAND", "WHAT"], "subcommand"), (["RESET", "a"], "RESET wants"),
        ([b"\r\n-X\xff"], "unknown command '??-X?'"), (["x" * 3000], "unknown command"), ([""], "unknown command")):
    answer = client.ask(*words)
    check(f"{str(words)[:60]} is an error that says why", isinstance(answer, Failed) and text in answer, answer)
equal("and the connection goes on", client.ask("PING"), "PONG")
equal("one request that is wrong leaves the others of TAKEALL alone",
      (client.ask("TAKEALL", "w", "1/h", 1, "", "1/h", 1), client.ask("PEEK", "w", "1/h")[2]), ("ERR the key is empty", 1))
equal("a shadow rule lets through and says what it would do", [client.ask("RULE", "shadow", "s")[::5] for _ in range(2)],
      [[1, "OK"], [1, "DENIED"]])
equal("QUIT", (client.ask("QUIT"), client.closed()), ("OK", True))
ends_cleanly(locked, "a server with a password")

# ---- README's page
with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
    page = file.read().split("\n## Any language: a server\n")[1].split("\n## ")[0]
equal("README builds it as its comment says", re.search(r"^cc .*$", page, re.M).group(0), head_lines("examples/server/main.c", "Build"))
words = shlex.split(re.search(r"^printf (.*) > limits.rules$", page, re.M).group(1))[0]
readme, readme_port = server("--rules", write("readme.rules", words.replace("\\n", "\n")), program=PLAIN)
calls = re.findall(r"^redis-cli -p 6380 (.*?) +# (.*)$", page, re.M)
check("README shows some calls", len(calls) >= 3, calls)
for call, answer in calls:
    run = subprocess.run(["redis-cli", "-p", str(readme_port), *shlex.split(call)], text=True, capture_output=True, timeout=20)
    equal(f"README: {call}", run.stdout.split(), answer.split())
described = set(re.findall(r"[A-Z.]+", " ".join(re.findall(r"^\| (`.*?) \|", page, re.M)))) - {".", "..."}
listed = {name.decode().upper() for name, _, _, key, _, _ in ask(readme_port, "COMMAND") if key}
equal("README has all commands that decide", described, listed)
most = int(re.search(rb"most_bytes:(\d+)", ask(readme_port, "INFO")).group(1)) / 10000
check("README says how much memory a client can take", f"about {most / 1000:.0f} KB each in the worst" in page.replace("\n", " "), most)
equal("the server of README ends", stop(readme), 0)

# ---- every byte at which a request may be cut
SENT = (encode(["TAKE", "cut", "1/h burst 1000"]) + b"PING\r\n" + encode(["ECHO", b"\r\n$3\r\n"]) + b"*0\r\n\r\n*-1\r\n"
        + b'TAKE  cut "1/h burst 1000" 2\n' + encode(["THROTTLE", "a\0b", 5, 1, 10**6]) + encode(["NO"]) + encode(["PING"]))
clients = [Client(port) for _ in range(len(SENT) + 1)]
for cut, client in enumerate(clients):
    client.send(SENT[:cut])
equal("half requests keep nobody waiting", ask(port, "PING"), "PONG")  # by now the server has read them
for cut, client in enumerate(clients):
    client.send(SENT[cut:])
    got = [client.answer() for _ in range(7)]
    equal(f"a request that is cut at byte {cut} is answered as a whole one",
          [got[0][0], got[1], got[2], got[3][0], got[4][1], got[5], got[6]],
          [1, "PONG", b"\r\n$3\r\n", 1, 5, "ERR unknown command 'NO'", "PONG"])
    client.close()
equal("and is charged once", ask(port, "PEEK", "cut", "1/h burst 1000")[2], 1000 - 3 * len(clients))
for cut in range(0, len(SENT), 3):
    client = Client(port)
    client.send(SENT[:cut])
    client.close()
client = Client(port)
for byte in SENT:
    client.send(bytes([byte]))
got = [client.answer() for _ in range(7)]
equal("byte by byte", (got[1], got[2], got[6]), ("PONG", b"\r\n$3\r\n", "PONG"))
client.close()

# ---- malformed and oversized requests
for sent, text in (
        (b"*33\r\n", "0 to 32"), (b"*99999999999999\r\n", "0 to 32"), (b"*-2\r\n", "0 to 32"), (b"*x\r\n", "0 to 32"),
        (b"*\r\n", "0 to 32"), (b"*1\n", "0 to 32"), (b"*1\rx", "0 to 32"), (b"*00000000001\r\n", "0 to 32"),
        (b"*1\r\n:1\r\n", "'$'"), (b"*1\r\nPING\r\n", "'$'"), (b"*1\r\n$x\r\n", "too long"), (b"*1\r\n$-1\r\n", "too long"),
        (b"*1\r\n$4097\r\n", "too long"), (b"*1\r\n$99999999999\r\n", "too long"),
        (b"*2\r\n$2000\r\n" + b"x" * 2000 + b"\r\n$2100\r\n", "too long"), (b"*1\r\n$4\r\nPINGxx", "longer than it says"),
        (b"*1\r\n$4\r\nPING\rx", "longer than it says"), (b"x" * 4096, "too long"), (b'ECHO "x\r\n', "quoted"),
        (b'ECHO "x"y\r\n', "quoted"), (b"x " * 33 + b"\r\n", "32 words")):
    client = Client(port)
    client.send(b"PING\r\n" + sent)
    answer = (client.answer(), client.answer())
    check(f"{sent[:30]} is told what is wrong, and closed",
          answer[0] == "PONG" and isinstance(answer[1], Failed) and text in answer[1] and client.closed(), answer)
    client.close()
equal("the longest request there is", len(ask(port, "ECHO", "x" * 4060)), 4060)
equal("an inline one", ask(port, *["PING"]), "PONG")
client = Client(port)
client.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nTAKE a 1/h\r\n")
check("a browser that was sent here gets no further than its first line",
      "unknown command" in client.answer() and client.closed())
client.close()
client = Client(port)
try:
    for _ in range(1000):
        client.send(b"y" * 65536)
    check("an endless line is cut off", False)
except OSError:
    check("an endless line is cut off", True)
client.close()

# ---- what comes to mind of nobody
rng = random.Random(SEED)
WORDS = [b"TAKE", b"TAKEALL", b"@login", b"1/h burst 3", b"THROTTLE", b"*", b"$", b"\r\n", b"\n", b'"', b"5", b"4095", b"-1", b" ",
         b"\0", b"HELLO", b"COMMAND", b"INFO", b"PEEK", b"k" * 500, b"*3\r\n$4\r\nTAKE\r\n$1\r\na\r\n$3\r\n1/h\r\n"]


def fuzz(where, count, seeds):
    for _ in range(count):
        client = Client(where, 5)
        data = b"".join(rng.choice(seeds) if rng.random() < 0.8 else rng.randbytes(rng.randrange(20))
                        for _ in range(rng.randrange(1, 60)))
        data = bytearray(data)
        for _ in range(rng.randrange(3) if data else 0):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            for at in range(0, len(data), max(1, len(data) // 3)):
                client.send(data[at:at + max(1, len(data) // 3)])
            if rng.random() < 0.5:
                client.socket.shutdown(socket.SHUT_WR)
                while client.socket.recv(65536):
                    pass
        except OSError:
            pass
        client.close()


fuzz(port, 1500, WORDS + [encode(["TAKE", "f", "1/h"]), encode(["TAKEALL", "f", "1/h", 1, "g", "2/h", 2]), SENT])
fuzz(METRICS, 300, [b"GET /metrics HTTP/1.1\r\n", b"\r\n", b"\n", b"Host: x\r\n", b"GET ", b"x" * 900])
equal("random bytes harm nobody", ask(port, "PING"), "PONG")

# ---- metrics
status, fields, body = http(METRICS, "/metrics")
check("metrics are Prometheus' text", status == 200 and fields["content-type"].startswith("text/plain; version=0.0.4"), fields)
equal("metrics: other pages, methods, fields without end",
      [http(METRICS, "/")[0], http(METRICS, "/metrics?x=1")[0], http(METRICS, "/metrics", method="POST")[0],
       http(METRICS, "/metrics", headers=[("X", "y" * 5000)])[0]], [404, 200, 405, 431])
time.sleep(1.1)  # they are made at most once a second
before = metric(METRICS, "ratelimit_allowed_total"), metric(METRICS, 'ratelimit_rule_allowed_total{rule="login"}')
client = Client(port)
for _ in range(5):
    client.ask("TAKE", "metrics", "1/h burst 9")
    client.ask("RULE", "login", "metrics")
client.close()
time.sleep(1.1)
equal("what was decided is counted, also by rule",
      (metric(METRICS, "ratelimit_allowed_total") - before[0],
       metric(METRICS, 'ratelimit_rule_allowed_total{rule="login"}') - before[1]), (7, 2))
check("INFO says the same", re.search(rb"\r\nallowed:\d{4,}\r\n", ask(port, "INFO")), ask(port, "INFO"))
open_ones = [socket.create_connection(("127.0.0.1", METRICS), 20) for _ in range(40)]
equal("many who say nothing on the port of metrics keep no client away", ask(port, "PING"), "PONG")
for one in open_ones:
    one.close()

# ---- SIGHUP
client = Client(port)
client.ask("RULE", "login", "reloaded", 2)
write("rules", "login 1/h burst 5\nnew 1/h\n")
child.send_signal(signal.SIGHUP)
check("SIGHUP reads the rules again", wait_until(lambda: client.ask("PEEK", "reloaded", "@login")[1] == 5))
equal("what was spent stays spent; a new rule is there, an old one is gone",
      (client.ask("PEEK", "reloaded", "@login")[2], client.ask("RULE", "new", "x")[:3], client.ask("RULE", "shadow", "x")),
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
time.sleep(1.1)
equal("reloads are counted", [metric(METRICS, f"ratelimit_server_{name}reloads_total") for name in ("", "failed_")], [1, 6])
client.close()
ends_cleanly(child, "the server")
check("the unix socket is removed", not os.path.exists(path("socket")))

# ---- slow clients, and too many
METRICS = free_port()
child, port = server("--timeout-s", "1", "--clients", "100", "--metrics", f"127.0.0.1:{METRICS}")
idle = Client(port)
half = Client(port)
half.send(b"*2\r\n$4\r\nECHO\r\n$9")
began = time.monotonic()
check("who sends half a request is cut off", half.closed())
check("not before its time", 0.9 < time.monotonic() - began < 15, time.monotonic() - began)
drop = Client(port)
began, count = time.monotonic(), 0
try:
    for count, byte in enumerate(encode(["ECHO", "z" * 4000])):
        drop.send(bytes([byte]))
        time.sleep(0.1)
except OSError:
    pass
check("a byte now and then does not help", 5 <= count < 200, count)
one = socket.create_connection(("127.0.0.1", METRICS), 20)
one.sendall(b"GET /metrics HTTP/1.1\r\n")
equal("nor does it on the port of metrics", one.recv(1000), b"")
one.close()
busy = Client(port)
request = encode(["ECHO", "z" * 1000])
for number in range(16):  # every part ends within a request
    busy.send((request[-500:] if number else b"") + request * 3 + request[:-500])
    for _ in range(3 + (number > 0)):
        busy.answer()
    time.sleep(0.1)
check("who always has half a request under way, but never the same, is not", busy.ask is not None)
busy.send(request[-500:])
equal("and goes on", len(busy.answer()), 1000)
busy.close()

slow = Client(port)
slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
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
check("and it is cut off", wait_until(lambda: (time.sleep(0.3), metric(METRICS, "ratelimit_server_too_slow_total"))[1] == 4),
      metric(METRICS, "ratelimit_server_too_slow_total"))
slow.close()

quick = Client(port)
count = 30000
sender = threading.Thread(target=lambda: quick.send(b"INFO\r\n" * count))
sender.start()
equal("a client that reads while it sends gets all its answers", sum(quick.answer().startswith(b"# Server") for _ in range(count)),
      count)
sender.join()
quick.close()
equal("a client may be idle for as long as it likes", idle.ask("PING"), "PONG")

clients = [Client(port) for _ in range(99)]
equal("as many as are allowed are served", {client.ask("PING") for client in clients}, {"PONG"})
over = Client(port)
equal("one more is told that there are too many", (over.answer(), over.closed()), ("ERR max number of clients reached", True))
check("the metrics say so all the same", wait_until(lambda: metric(METRICS, "ratelimit_server_turned_away_total") == 1))
clients.pop().close()
check("when one leaves there is room again", wait_until(lambda: ask(port, "PING") == "PONG"))
for client in clients:
    client.close()
ends_cleanly(child, "a server with slow clients")

child, port = server("--idle-s", "1")
idle = Client(port)
equal("with --idle-s a client may be silent for a while", idle.ask("PING"), "PONG")
check("and is closed then", idle.closed())
ends_cleanly(child, "a server that closes idle clients")

# ---- thousands of connections
MANY = min(5000, FILES - 500)
child, port = server("--clients", str(MANY), program=PLAIN)
equal("a server for many", ask(port, "PING"), "PONG")  # by now it has touched all of its table
before = resident_kb(child)
clients = [Client(port) for _ in range(MANY)]
for client in clients:
    client.send(encode(["TAKE", "many", f"1/d burst {MANY - 1000}"]))
allowed = sum(client.answer()[0] for client in clients)
equal(f"{MANY} connections at once take exactly the burst", allowed, MANY - 1000)
each = (resident_kb(child) - before) * 1024 / MANY
check("a client that is served takes some hundred bytes", each < 1500, each)
for client in clients:
    client.send(encode(["ECHO", "x" * 3000])[:-100])
equal("with half a request of each of them the server goes on", clients[0].ask is not None, True)
clients[0].send(encode(["ECHO", "x" * 3000])[-100:])
equal("and answers whoever goes on", len(clients[0].answer()), 3000)
each = (resident_kb(child) - before) * 1024 / MANY
check("a client with half a request takes little more than that", each < 5500, each)
print(f"{MANY} clients with half a request of 3 KB: {each:.0f} bytes each")
for client in clients:
    client.close()
check("when they are gone", wait_until(lambda: re.search(rb"connected_clients:1\r", ask(port, "INFO"))))
equal("the server ends", stop(child), 0)

# ---- a file, kill -9
table = path("table")
child, port = server("--file", table, "--keys", "1000")
equal("some tokens are taken", ask(port, "TAKE", "kept", "1/d burst 10", 4)[2], 6)
run = subprocess.run([SERVER, "--file", table, "--keys", "1000"], text=True, capture_output=True, timeout=20)
check("another server can't use the file meanwhile", run.returncode == 1 and "another server uses it" in run.stderr, run)
equal("it is killed", stop(child, signal.SIGKILL), -signal.SIGKILL)
run = subprocess.run([SERVER, "--file", table, "--keys", "2000"], text=True, capture_output=True, timeout=20)
check("a table of another size is left as it is", run.returncode == 1 and "left as it is" in run.stderr, run)
child, port = server("--file", table, "--keys", "1000")
equal("after kill -9 the table is as it was", ask(port, "PEEK", "kept", "1/d burst 10")[2], 6)
check("the file is for its owner alone", os.stat(table).st_mode & 0o777 == 0o600)
ends_cleanly(child, "a server with a file")
with open(table, "r+b") as file:
    file.write(b"\xff" * 64)
run = subprocess.run([SERVER, "--file", table, "--keys", "1000"], text=True, capture_output=True, timeout=20)
check("a damaged table is refused", run.returncode == 1 and "left as it is" in run.stderr, run)

# kill -9 under load: no more than the burst passes, and no less but for what was not answered
child, port = server("--file", path("loaded"), "--keys", "1000")
passed = 0
for _ in range(5):
    client = Client(port)
    client.send(encode(["TAKE", "load", "1/h burst 100000"]) * 3000)
    for _ in range(500):
        passed += client.answer()[0]
    stop(child, signal.SIGKILL)
    while (answer := client.answer()) is not None:
        passed += answer[0]
    client.close()
    child, port = server("--file", path("loaded"), "--keys", "1000")
left = ask(port, "PEEK", "load", "1/h burst 100000")[2]
check("killed five times under load: every answer counts in the table, and what was not answered at most once",
      100000 - 15000 <= left <= 100000 - passed, (left, passed))
ends_cleanly(child, "a server that goes on after kill -9")

# ---- IPv6
if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6") and "00000000000000000000000000000001" in open(
        "/proc/net/if_inet6", encoding="ascii").read():
    number = free_port()
    child = start(SERVER, "--listen", f"[::1]:{number}")
    check("the server listens on an IPv6 address", wait_until(lambda: cli("PING", where=["-h", "::1", "-p", str(number)]) == "PONG"))
    ends_cleanly(child, "a server on IPv6")

# ---- a unix socket that a killed server left
sock = path("left")
child = start(SERVER, "--listen", f"unix:{sock}", unix=sock)
run = subprocess.run([SERVER, "--listen", f"unix:{sock}"], text=True, capture_output=True, timeout=20)
check("two servers can't have the same unix socket", run.returncode == 1 and "another server listens" in run.stderr, run)
stop(child, signal.SIGKILL)
check("a server that is killed leaves its unix socket", os.path.exists(sock))
child = start(SERVER, "--listen", f"unix:{sock}", unix=sock)
equal("the next one takes it over", ask(sock, "PING"), "PONG")
ends_cleanly(child, "a server on a unix socket")

# ---- another process takes over
for where in ([], ["--file", path("handed"), "--keys", "1000"]):
    rules = write("handed.rules", "hand 1/h burst 1000000\n")
    METRICS = free_port()
    child, port = server("--rules", rules, "--listen", f"unix:{sock}", "--metrics", f"127.0.0.1:{METRICS}",
                         "--drain-s", "3", *where)
    write("handed.rules", "hand 1/h burst\n")
    child.send_signal(signal.SIGUSR2)
    check("if the new process does not start the old one goes on",
          wait_until(lambda: "did not start; this one goes on" in said(child)), said(child))
    equal("as if nothing had been", ask(port, "PEEK", "k", "@hand")[2], 1000000)
    write("handed.rules", "hand 1/h burst 1000000\n")
    patient = Client(port)
    patient.ask("PING")
    steady = subprocess.Popen(["node", os.path.join(ROOT, "tests/examples/server_client.js"), "steadily", str(port)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=NODE)
    example.children.append(steady)
    equal("ioredis asks steadily", steady.stdout.readline(), "begun\n")
    counts, refusals, stopping = [], [], threading.Event()

    def load():
        taken = unsure = 0
        while not stopping.is_set():
            try:
                client = Client(port)
            except OSError as error:
                refusals.append(error)
                break
            for _ in range(20):
                try:
                    client.send(encode(["RULE", "hand", "k"]))
                    answer = client.answer()
                except OSError:
                    answer = None
                if answer is None:
                    unsure += 1
                    break
                taken += answer[0]
            client.close()
        counts.append((taken, unsure))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    child.send_signal(signal.SIGUSR2)
    check("a new process takes over", wait_until(lambda: "has taken over" in said(child)), said(child))
    later = int(re.search(r"process (\d+) has taken over", said(child)).group(1))
    equal("who was connected is answered once more, and closed", (patient.ask("PING"), patient.closed()), ("PONG", True))
    equal("the old process ends with exit code 0", child.wait(20), 0)
    time.sleep(0.2)
    said_last = steady.communicate("", 20)[0]
    check("ioredis has noticed nothing: all its calls were answered", re.fullmatch(r"ok: \d\d+ answered\n", said_last), said_last)
    stopping.set()
    for thread in threads:
        thread.join()
    taken, unsure = sum(c[0] for c in counts), sum(c[1] for c in counts)
    left = ask(port, "PEEK", "k", "@hand")[2]
    equal("no connection was refused", refusals, [])
    check("the table was never lost: what was answered was taken, and what is uncertain at most",
          1000000 - taken - unsure <= left <= 1000000 - taken, (left, taken, unsure))
    check("something was taken", taken > 50, taken)
    equal("the unix socket and the metrics went along", (ask(sock, "PING"), http(METRICS, "/metrics")[0]), ("PONG", 200))
    print(f"handed over under load: {taken} answered, {unsure} uncertain")
    os.kill(later, signal.SIGTERM)
    check("the new one ends", wait_until(lambda: not os.path.exists(sock)))
    check("the sanitizers find nothing", "ERROR: " not in said(child) and "runtime error" not in said(child), said(child)[-2000:])

done()
