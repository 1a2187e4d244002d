"""Decisions are those of exact arithmetic, at times that the check sets (clock.c)."""
import math
import mmap
import os
import random
import struct
from fractions import Fraction

from example import build, equal, stop
from server.common import Client, Failed, PLAIN, SEED, encode, path, server

SECOND = 10**9
CLOCK = build("tests/server/clock.c", sanitized=False)


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
            elif rng.random() < 0.3:
                words, want = rng.choice([(["PING"], "PONG"), (["ECHO", key], key.encode()), (["TAKE", key, "1/s", "x"], None),
                                          (["THROTTLE", key, "x", 1, 1], None), (["TAKE"], None), (["NO"], None)])
                requests.append(words)
                wanted.append(want or "error")
            else:
                asked = [(rng.choice("abcd"), *rng.choice(texts), rng.choice([1, 1, 2])) for _ in range(rng.randrange(1, 9))]
                requests.append(["TAKEALL"] + [word for key, text, _, n in asked for word in (key, text, n)])
                wanted.append(("all", oracle.all_or_none([(key, limit, n) for key, _, limit, n in asked], now)))
        client.send(b"".join(encode(words) for words in requests))
        for words, want in zip(requests, wanted):
            got = client.answer()
            if isinstance(want, tuple):
                want, got = want[1], [[a[0], a[4], a[5]] for a in got]
            if want == "error" and isinstance(got, Failed):
                got = want
            compared += 1
            if got != want:
                wrong.append((now, words, got, want))
    equal(f"{compared} random decisions are those of exact arithmetic; SEED={SEED}; the first that is not", wrong[:1], [])


def many_limits(client, _):
    """More than the server remembers: none is taken for another."""
    for words in ([f"THROTTLE {n}.{burst} {burst} 1 1" for n in range(2) for burst in range(1, 600)],
                  [f"THROTTLE {n}.{burst} {burst} 1 {burst % 7 + 1}" for n in range(2) for burst in range(1, 600)],
                  [f"TAKE {n}.{burst} 1/{burst % 7 + 1}s|burst|{burst}" for n in range(2) for burst in range(1, 600)]):
        client.send(b"".join(encode([word.replace("|", " ") for word in line.split()]) for line in words))
        got = [client.answer()[1] for _ in words]
        equal(f"each of many limits is itself: {words[0]}", got, [burst for _ in range(2) for burst in range(1, 600)])
    lines = [encode(["THROTTLE", f"c{count}.{period}", 1, count, period]) for count in range(1, 30) for period in range(1, 30)]
    client.send(b"".join(lines * 2))
    wanted = [up(Fraction(period, count), 1) for count in range(1, 30) for period in range(1, 30)]
    equal("also by count and period", [client.answer()[3] for _ in lines * 2], wanted * 2)


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


def run():
    with_set_clock(compare)
    with_set_clock(many_limits)
    with_set_clock(boundaries, "--file", path("clocked"))
