"""What the tests of replay share: running it, and a model of it.

The model reads the logs by itself, sorts them stably by time and decides in whole numbers of 1/tokens ns, so it shares
nothing with ratelimit.h.
"""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime

BINARIES = sys.argv[1] if len(sys.argv) > 1 else "build"
REPLAY = os.path.join(BINARIES, "replay")
MAKE_LOG = os.path.join(BINARIES, "make_log")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "..", "shared", "data")
FOREVER = 2**64 - 1
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
FOLDER = tempfile.TemporaryDirectory()
SEED = int(os.environ.get("SEED", "1"), 0)
COMBINED = '192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a?b=c HTTP/1.1" 200 512 "http://x/" "Agent 1.0"\n'


# ---- running ------------------------------------------------------------------------------------------------------


class Skip(Exception):
    pass


def run(*args, stdin=b"", env=None, **more):
    """Runs replay: its exit code, standard output and standard error."""
    if isinstance(stdin, str):
        stdin = stdin.encode()
    done = subprocess.run([REPLAY, *map(str, args)], input=stdin, capture_output=True, timeout=120, env=env, **more)
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


def good(*args, **more):
    """Standard output of a run that must succeed."""
    code, out, err = run(*args, **more)
    assert code == 0, (code, err)
    return out


def failed(*args, **more):
    """The report in JSON of a run in which no line could be read, or not every file."""
    code, out, err = run("--json", *args, **more)
    assert code == 1, (code, err)
    return json.loads(out)


def report(*args, **more):
    return good(*args, **more).decode()


def summary(*args, **more):
    return json.loads(good("--json", *args, **more))


def decisions(*args, **more):
    return [tuple(map(int, line.split())) for line in good("--decisions", *args, **more).splitlines()]


def file_of(content, name="log"):
    path = os.path.join(FOLDER.name, name)
    with open(path, "wb") as f:
        f.write(content.encode() if isinstance(content, str) else content)
    return path


def made_log(*args):
    return subprocess.run([MAKE_LOG, *map(str, args)], capture_output=True, check=True).stdout


SAMPLE = made_log()
SAMPLE_FILE = file_of(SAMPLE, "sample.log")


class Random:
    """splitmix64"""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & FOREVER
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & FOREVER
        z = (z ^ z >> 27) * 0x94D049BB133111EB & FOREVER
        return (z ^ z >> 31) % n

    def between(self, low, high):
        return low + self.below(high - low + 1)

    def choice(self, among):
        return among[self.below(len(among))]


# ---- the model ----------------------------------------------------------------------------------------------------


class Limit:
    def __init__(self, text):
        m = re.fullmatch(r"(\d+)(?:\.(\d+))?/(\d+)?([a-z]+)(?: burst (\d+))?( window)?", text)
        whole, part, count, unit, burst, window = m.groups()
        scale = 10 ** len(part or "")
        self.tokens = int(whole + (part or ""))
        self.per = int(count or 1) * UNITS[unit] * scale
        self.burst = int(burst) if burst else -(-self.tokens // scale)
        self.window = bool(window)
        self.full = {}  # of each key, in 1/tokens ns

    def ask(self, key, n, now):
        """passes, remaining if so, remaining if not, retry_after if not"""
        at = (now // self.per + 1) * self.per if self.window else now
        debt = max(0, self.full.get(key, 0) - at * self.tokens)
        room = self.burst * self.per
        cost = n * self.per
        left = max(0, room - debt) // self.per
        if n > self.burst:
            return False, 0, left, FOREVER
        if debt + cost <= room:
            return True, (room - debt - cost) // self.per, left, 0
        return False, 0, left, at - now if self.window else -((room - debt - cost) // self.tokens)

    def take(self, key, n, now):
        at = (now // self.per + 1) * self.per if self.window else now
        self.full[key] = max(self.full.get(key, 0), at * self.tokens) + n * self.per


def model(requests, *limits):
    """requests are (ns, line, key, cost) in the order of the file; returns what --decisions prints."""
    limits = [Limit(text) for text in limits]
    out = []
    for now, line, key, n in sorted(requests, key=lambda r: r[0]):
        asked = [limit.ask(key, n, now) for limit in limits]
        allowed = all(a[0] for a in asked)
        if allowed:
            for limit in limits:
                limit.take(key, n, now)
            out.append((line, 1, min(a[1] for a in asked), 0))
        else:
            out.append((line, 0, min(a[2] for a in asked if not a[0]), max(a[3] for a in asked)))
    return out


CLF = re.compile(rb'(\S+) \S+ .*?\[(\d+/\w+/\d+:\d+:\d+:\d+ [+-]\d{4})\](?: "((?:[^"\\]|\\.)*)"(?: (\S+)(?: (\S+))?)?)?')


@functools.lru_cache
def clf_requests(content, key="ip", cost=None):
    out = []
    for number, line in enumerate(content.split(b"\n"), 1):
        m = CLF.match(line.lstrip(b"\0"))
        if not m:
            continue
        when = datetime.strptime(m[2].decode(), "%d/%b/%Y:%H:%M:%S %z")
        path = (m[3] or b"").split()
        path = (path[1] if len(path) > 1 else m[3] or b"").split(b"?")[0]
        keys = {"ip": m[1], "path": path, "ip+path": m[1] + b" " + path}
        n = 1 if cost is None or m[5] in (b"-", b"0") else int(m[5])
        out.append((int(when.timestamp()) * 10**9, number, keys[key], n))
    return out


def plain_requests(content):
    out = []
    for number, line in enumerate(content.splitlines(), 1):
        fields = line.split()
        whole, _, part = fields[0].partition(".")
        ns = int(whole) * 10**9 + int((part + "0" * 9)[:9])
        out.append((ns, number, fields[1], max(1, int(fields[2])) if len(fields) > 2 else 1))
    return out


def first_difference(got, want):
    for i, (g, w) in enumerate(zip(got, want)):
        if g != w:
            return f"decision {i} is {g}, the model says {w}"
    return None if len(got) == len(want) else f"{len(got)} decisions, the model has {len(want)}"


def compare(requests, limits, *args, **more):
    flags = [flag for limit in limits for flag in ("--limit", limit)]
    difference = first_difference(decisions(*flags, *args, **more), model(requests, *limits))
    assert difference is None, (limits, args, difference)


LIMITS = [
    ["10/m burst 20"],
    ["1/s"],
    ["1/m burst 1"],
    ["7/s burst 7"],
    ["0.5/s burst 3"],
    ["3/7s burst 11"],
    ["1000/d burst 30"],
    ["7/1013ms burst 5"],
    ["60/m window"],
    ["5/10s window"],
    ["1000000000/s"],
    ["10/m burst 20", "100/h burst 100"],
    ["30/m", "2/s burst 5", "20/m window"],
    ["5/m burst 9", "5/m burst 9"],
]


def real(name):
    path = os.path.join(DATA, name)
    if not os.path.exists(path):
        raise Skip("no " + name)
    return path


def keys_of(log, *args):
    """What the key of each line of log is: each is refused once, so each is among the most refused."""
    out = []
    for line in log if isinstance(log, list) else [log]:
        s = summary("--limit", "1/w", *args, stdin=line + line if isinstance(line, bytes) else (line * 2).encode())
        out.append(s["most_refused"][0]["key"] if s["most_refused"] else None)
    return out if isinstance(log, list) else out[0]
