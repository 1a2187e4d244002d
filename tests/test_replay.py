#!/usr/bin/env python3
"""test_replay.py - examples/replay against a model of our own

    python3 tests/test_replay.py [BINARIES [WORD]...]      BINARIES: the folder with replay and make_log (default build)

The model reads the logs by itself, sorts them stably by time and decides in whole numbers of 1/tokens ns, so it shares
nothing with ratelimit.h. Each test is a function whose name is the sentence it proves. Words on the command line choose
the tests whose names contain one. SEED=n in the environment replays the random ones. Prints failures, then "N passed, N failed".
"""

import functools
import hashlib
import json
import os
import pty
import re
import resource
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections import Counter
from datetime import datetime

BINARIES = sys.argv[1] if len(sys.argv) > 1 else "build"
REPLAY = os.path.join(BINARIES, "replay")
MAKE_LOG = os.path.join(BINARIES, "make_log")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.join(ROOT, "..", "shared", "data")
FOREVER = 2**64 - 1
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
FOLDER = tempfile.TemporaryDirectory()
SEED = int(os.environ.get("SEED", "1"), 0)


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


# ---- decisions ----------------------------------------------------------------------------------------------------


def every_decision_on_the_sample_equals_the_models():
    for limits in LIMITS:
        compare(clf_requests(SAMPLE), limits, SAMPLE_FILE)


def path_keys_decide_as_the_model():
    for key in "path", "ip+path":
        for limits in ["10/m burst 20"], ["1/s", "30/m burst 30"]:
            compare(clf_requests(SAMPLE, key), limits, "--key", key, SAMPLE_FILE)


def the_cost_in_bytes_decides_as_the_model():
    for limits in ["1000000/m burst 2000000"], ["50000/s"], ["1/s burst 40000", "3000000/h window"]:
        compare(clf_requests(SAMPLE, cost="bytes"), limits, "--cost", "bytes", SAMPLE_FILE)


def random_plain_logs_decide_as_the_model():
    random = Random(SEED)
    for _ in range(60):
        now, lines = random.below(10**12), []
        step = random.choice([1, 1000, 10**6, 10**8, 10**9, 10**11])
        for _ in range(random.between(1, 400)):
            now += random.below(3) * random.below(step + 1)
            cost = random.choice(["", "", f" {random.below(9)}"])
            back = min(now, random.below(2) * random.below(5 * step))
            lines.append(f"{(now - back) // 10**9}.{(now - back) % 10**9:09d} key{random.below(4)}{cost}\n")
        limits = []
        for _ in range(random.between(1, 3)):
            per = random.choice(["ns", "us", "ms", "s", "m", "h"])
            limits.append(f"{random.between(1, 50)}/{random.between(1, 90)}{per}" + random.choice(["", " window", f" burst {random.between(1, 60)}"]))
        compare(plain_requests("".join(lines)), limits, stdin="".join(lines))


def fractions_of_a_second_are_exact_to_the_ns():
    log = "0 a\n0.142857142 a\n0.142857143 a\n0.285714285 a\n0.285714286 a\n1.0000000009 a\n"
    assert decisions("--limit", "7/s burst 1", stdin=log) == [
        (1, 1, 0, 0), (2, 0, 0, 1), (3, 1, 0, 0), (4, 0, 0, 1), (5, 1, 0, 0), (6, 1, 0, 0)]
    assert decisions("--limit", "1/s", stdin="18446744073.709551615 a\n18446744073.709551616 a\n") == [(1, 1, 0, 0)]


def two_limits_on_one_key_have_a_bucket_each():
    assert [d[1] for d in decisions("--limit", "1/h burst 2", "--limit", "1/h burst 2", stdin="1 a\n1 a\n1 a\n")] == [1, 1, 0]


def a_request_that_one_limit_refuses_costs_nothing_in_the_others():
    log = "1 a\n1 a\n1 a\n2 a\n"  # the second and third must not empty the bucket of 2
    assert [d[1] for d in decisions("--limit", "1/s", "--limit", "1/h burst 2", stdin=log)] == [1, 0, 0, 1]


def a_cost_above_the_burst_is_refused_for_ever():
    assert decisions("--limit", "1/s burst 5", stdin="1 a 6\n1 a 5\n") == [(1, 0, 5, FOREVER), (2, 1, 0, 0)]
    assert summary("--limit", "1/s burst 5", stdin="1 a 6\n1 a 5\n")["above_burst"] == 1


def an_unlimited_limit_refuses_nothing():
    assert summary("--limit", "unlimited", SAMPLE_FILE)["refused"] == 0


def the_web_log_has_497_refused_requests_of_31_addresses():
    path = real("web-access.log")
    s = summary("--limit", "10/m burst 20", path)
    assert (s["requests"], s["keys"], s["refused"], s["keys_refused"]) == (10000, 1753, 497, 31), s
    assert s["most_refused"][0] == {"key": "198.18.4.138", "refused": 151, "requests": 357}, s["most_refused"][0]
    assert s["table"]["evicted"] == 0 and s["too_late"] == 0 and s["bad_lines"] == 0


def every_decision_on_the_web_log_equals_the_models():
    path = real("web-access.log")
    with open(path, "rb") as f:
        content = f.read()
    for limits in LIMITS:
        compare(clf_requests(content), limits, path)
    compare(clf_requests(content, "ip+path"), ["1/m burst 2"], "--key", "ip+path", path)
    compare(clf_requests(content, "path"), ["1/m burst 2", "9/h"], "--key", "path", path)
    compare(clf_requests(content, cost="bytes"), ["1000000/m burst 9000000"], "--cost=bytes", path)


def every_decision_on_the_ssh_log_equals_the_models():
    path = real("ssh-auth.log")
    requests = []
    with open(path) as f:
        for number, line in enumerate(f, 1):
            month, day, clock, address = line.split()[:4]
            when = datetime.strptime(f"2000 {month} {day} {clock} +0000", "%Y %b %d %H:%M:%S %z")
            requests.append((int(when.timestamp()) * 10**9, number, address, 1))
    for limits in LIMITS:
        compare(requests, limits, path)


def real(name):
    path = os.path.join(DATA, name)
    if not os.path.exists(path):
        raise Skip("no " + name)
    return path


# ---- forms of input -----------------------------------------------------------------------------------------------

COMBINED = '192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a?b=c HTTP/1.1" 200 512 "http://x/" "Agent 1.0"\n'


def keys_of(log, *args):
    """What the key of each line of log is: each is refused once, so each is among the most refused."""
    out = []
    for line in log if isinstance(log, list) else [log]:
        s = summary("--limit", "1/w", *args, stdin=line + line if isinstance(line, bytes) else (line * 2).encode())
        out.append(s["most_refused"][0]["key"] if s["most_refused"] else None)
    return out if isinstance(log, list) else out[0]


def common_and_combined_lines_are_read():
    common = '192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 512\n'
    assert keys_of([common, COMBINED, COMBINED.replace("\n", "\r\n")]) == ["192.0.2.1"] * 3


def a_user_with_blanks_and_brackets_is_read():
    assert keys_of(COMBINED.replace("- - [", "- john [x] doe [")) == "192.0.2.1"


def a_virtual_host_before_the_address_is_passed_over():
    assert keys_of(["www.example.com:443 " + COMBINED, COMBINED.replace("192.0.2.1", "client.example")]) == ["192.0.2.1", "client.example"]


def quotes_in_a_request_do_not_end_it():
    line = COMBINED.replace("/a?b=c", '/a\\"b')
    assert keys_of(line, "--key", "path") == '/a\\"b'
    assert [d[2] for d in decisions("--limit", "1000/w", "--cost", "bytes", stdin=line)] == [1000 - 512]


def requests_that_are_no_requests_have_a_path_too():
    assert keys_of([COMBINED.replace("GET /a?b=c HTTP/1.1", r) for r in ("-", "\\x16\\x03\\x01")], "--key", "path") == ["-", "\\x16\\x03\\x01"]


def time_zones_are_honoured():
    zones = ["17/May/2015:12:05:03 +0200", "17/May/2015:04:35:03 -0530", "18/May/2015:00:05:03 +1400", "17/May/2015:10:05:03 +0000"]
    log = "".join(COMBINED.replace("17/May/2015:10:05:03 +0000", zone) for zone in zones)
    s = summary("--limit", "9/s", stdin=log)
    assert s["first_time"] == s["last_time"] == "2015-05-17T10:05:03.000000000Z", s


def the_calendar_is_right_for_every_month_and_leap_year():
    log, want = "", []
    for year in 1970, 1999, 2000, 2015, 2016, 2100, 2553:
        for month in "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split():
            for day in 1, 28, 29, 30, 31:
                stamp = f"{day:02d}/{month}/{year}:23:59:59 +0000"
                try:
                    at = int(datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z").timestamp())
                except ValueError:
                    at = 0  # no such day: a bad line
                else:
                    want += [(len(log.split("\n")), 1, 0, 0), (len(log.split("\n")) + 1, 0, 0, 1)]
                # the plain line has the same key and time, so it is refused, for one ns more
                log += f"{year}{month}{day} - - [{stamp}]\n" + (f"{at} {year}{month}{day}\n" if at else "#\n")
    assert len(want) > 700
    assert decisions("--limit", "1/ns", stdin=log) == sorted(want)


def the_forms_may_be_mixed():
    log = COMBINED + "Dec 10 06:55:48 198.18.0.1 failed-password\n" + "1500000000.5 alice 3\n"
    s = summary("--limit", "9/s", stdin=log)
    assert (s["requests"], s["keys"], s["bad_lines"]) == (3, 3, 0)


def the_size_in_bytes_is_the_cost():
    for size, cost in ("512", 512), ("-", 1), ("0", 1), ("1", 1):
        line = COMBINED.replace(" 512 ", f" {size} ")
        assert [d[2] for d in decisions("--limit", "1000/w", "--cost", "bytes", stdin=line)] == [1000 - cost], size
    assert [d[2] for d in decisions("--limit", "1000/w", stdin=COMBINED)] == [999]


def a_plain_lines_cost_is_in_tokens():
    assert [d[2] for d in decisions("--limit", "9/w", stdin="1 a 3\n1 b\n1 c 0\n")] == [6, 8, 8]


def a_key_may_be_any_field():
    assert keys_of([COMBINED] * 3, "--key", "1") == ["192.0.2.1"] * 3
    assert keys_of(COMBINED, "--key", "7") == "/a?b=c"
    assert keys_of("5 alice 1 x\n", "--key", "4") == "x"
    assert summary("--limit", "1/s", "--key", "99", stdin=COMBINED)["bad_lines"] == 1


def addresses_are_cut_to_their_prefix():
    v6 = [COMBINED.replace("192.0.2.1", a) for a in ("2001:db8:1:2:3::4", "2001:DB8:1:2:0:0:0:1", "2001:db8:1:3::", "[not::one")]
    assert keys_of(v6, "--ip-prefix", "64") == ["2001:db8:1:2::/64", "2001:db8:1:2::/64", "2001:db8:1:3::/64", "[not::one"]
    assert keys_of(v6[:2], "--ip-prefix", "47") == ["2001:db8::/47"] * 2
    assert keys_of(v6[0], "--ip-prefix", "0") == "::/0"
    assert keys_of(v6[:2]) == ["2001:db8:1:2:3::4", "2001:db8:1:2::1"]
    assert keys_of(COMBINED, "--ipv4-prefix", "23") == "192.0.2.0/23"
    assert keys_of(COMBINED, "--ipv4-prefix", "30", "--ip-prefix", "8") == "192.0.2.0/30"


def a_mapped_ipv4_address_is_the_ipv4_address():
    mapped = [COMBINED.replace("192.0.2.1", a) for a in ("::ffff:192.0.2.1", "::FFFF:c000:201", "0:0:0:0:0:ffff:192.0.2.1")]
    assert keys_of(mapped, "--ip-prefix", "64") == ["192.0.2.1"] * 3
    assert keys_of(mapped, "--ipv4-prefix", "24") == ["192.0.2.0/24"] * 3


def the_ip_prefix_applies_to_ip_and_path_too():
    line = COMBINED.replace("192.0.2.1", "2001:db8::7")
    assert keys_of(line, "--key", "ip+path", "--ip-prefix", "32") == "2001:db8::/32 /a"


def sshds_own_lines_are_read():
    log = ["Dec 10 06:55:48 LabSZ sshd[24200]: Failed password for invalid user from 5 from 173.234.31.186 port 38926 ssh2\n",
           "Dec  1 06:55:48 2001:db8::1 failed-password\n", "Dec 10 06:55:48 alice failed-password\n",
           "Dec 10 06:55:48 LabSZ sshd[24200]: Server listening on 0.0.0.0 port 22.\n",
           "Dec 10 06:55:48 LabSZ sshd[24200]: Forwarding with 10.0.0.1 from 10.0.0.2 refused\n"]
    assert keys_of(log) == ["173.234.31.186", "2001:db8::1", "alice", None, "10.0.0.2"]


def the_turn_of_the_year_is_a_turn_forward():
    log = "Nov 30 10:00:00 a x\nDec 31 23:59:59 a x\nJan  1 00:00:00 a x\nDec 31 23:59:58 a x\nJan  1 00:00:01 a x\nFeb 29 00:00:00 a x\n"
    s = summary("--limit", "9/s", "--year", "2003", stdin=log)
    assert (s["first_time"][:10], s["last_time"][:10], s["assumed_year"]) == ("2003-11-30", "2004-02-29", 2003), s
    assert [d[0] for d in decisions("--limit", "9/s", "--year", "2003", stdin=log)] == [1, 4, 2, 3, 5, 6]
    assert summary("--limit", "9/s", "--year", "2001", stdin=log)["first_bad_line"] == 6  # no 29 February in 2002


def several_turns_of_the_year_are_followed():
    log = "Mar  1 00:00:00 a x\nJan  1 00:00:00 a x\nDec  1 00:00:00 a x\nMar  1 00:00:00 a x\n".replace("Dec", "Nov")
    s = summary("--limit", "9/s", stdin=log)
    assert (s["first_time"][:10], s["last_time"][:10]) == ("2000-03-01", "2002-03-01"), s


def a_line_late_by_a_month_is_no_turn_of_the_year():
    s = summary("--limit", "9/s", stdin="Mar  1 00:00:00 a x\nFeb 29 23:59:59 a x\nMar  1 00:00:01 a x\n")
    assert (s["first_time"], s["last_time"][:10]) == ("2000-02-29T23:59:59.000000000Z", "2000-03-01"), s


def the_assumed_year_is_said():
    assert "2000 (--year)" in report("--limit", "9/s", stdin="Mar  1 00:00:00 a x\n")
    assert "--year" not in report("--limit", "9/s", stdin="1 a\n")


# ---- bad input ----------------------------------------------------------------------------------------------------


def bad_lines_are_counted_and_the_first_is_named():
    log = COMBINED + "\n# a comment\nnonsense\n" + COMBINED + "192.0.2.1 - - [17/May/2015:10:05:03\n"
    s = summary("--limit", "9/s", stdin=log)
    assert (s["requests"], s["bad_lines"], s["first_bad_line"]) == (2, 2, 4), s
    assert re.search(r"bad lines +2 +the first is line 4\n", report("--limit", "9/s", stdin=log))
    assert "bad lines: 2   the first is line 4\n" in run("--limit", "9/s", "--decisions", stdin=log)[2]
    files = file_of(COMBINED, "fine"), file_of("1 a\nnonsense\n", "faulty")
    assert f"bad lines                 1   the first is line 2 of {files[1]}\n" in report("--limit", "9/s", *files)


def each_kind_of_bad_line_is_bad():
    for line in ("17", "x y z", "1.5.2 a", "1. a", ".5 a", "-1 a", "1 a b", "1 a -1", "1 a 1.5", "99999999999999999999 a", "1,5 a",
                 "Dec 32 00:00:00 a b", "Dez 10 00:00:00 a b", "Dec 10 24:00:00 a b", "Dec 10 00:00 a b", "Dec 10 00:00:00",
                 "[17/May/2015:10:05:03 +0000]", "a - - [31/Apr/2015:10:05:03 +0000]", "a - - [17/May/2015:10:61:03 +0000]",
                 "a - - [17/May/2015:10:05:03 0000]", "a - - [17/May/2015:10:05:03 +0061]", "a - - [17/May/1969:10:05:03 +0000]",
                 "a - - [17/May/2600:10:05:03 +0000]", "a - - [17/May/2015:10:05:03]", "\0\0\0", "\xff\xfe"):
        s = summary("--limit", "9/s", stdin=(line + "\n").encode("latin-1"))
        assert (s["requests"], s["bad_lines"], s["first_bad_line"]) == (0, 1, 1), (line, s)


def what_is_not_needed_may_be_missing():
    cut = COMBINED[:60]
    assert summary("--limit", "9/s", stdin=cut)["requests"] == 1
    assert summary("--limit", "9/s", "--key", "path", stdin=cut)["bad_lines"] == 1
    assert summary("--limit", "9/s", "--cost", "bytes", stdin=cut)["bad_lines"] == 1


def a_log_of_bad_lines_only_says_so():
    text = report("--limit", "9/s", stdin="nonsense\n" * 7)
    assert "no line could be read" in text and re.search(r"bad lines +7 +the first is line 1\n", text)


def nulls_are_survived():
    nul = COMBINED.encode()
    s = summary("--limit", "1/w", stdin=b"\0" * 200000 + nul + nul.replace(b"192.0.2.1", b"1\x002") * 2)
    assert (s["requests"], s["keys"], s["bad_lines"]) == (3, 2, 0), s
    assert s["most_refused"][0]["key"] == "1\\x002"


def lines_that_are_not_utf8_are_survived():
    s = summary("--limit", "1/w", "--key", "path", stdin=COMBINED.encode().replace(b"/a", b"/\xff\xc3\xa9\xc0\xaf\xed\xa0\x80") * 2)
    assert s["most_refused"][0]["key"] == "/\\xff\u00e9\\xc0\\xaf\\xed\\xa0\\x80", s["most_refused"]


def starve():
    resource.setrlimit(resource.RLIMIT_AS, (30_000_000, 30_000_000))


def a_line_of_megabytes_is_survived_in_starve():
    long = COMBINED.encode().replace(b"/a?b=c", b"/" + b"a" * 50_000_000)
    address_space = starve
    try:
        good("--help", preexec_fn=starve)
    except AssertionError:  # built with a sanitizer, which needs more
        address_space = None
    s = summary("--limit", "1/w", stdin=long + COMBINED.encode(), preexec_fn=address_space)
    assert (s["requests"], s["bad_lines"]) == (2, 0), s
    s = summary("--limit", "1/w", "--key", "path", stdin=long + COMBINED.encode(), preexec_fn=address_space)
    assert (s["requests"], s["bad_lines"], s["first_bad_line"]) == (1, 1, 1), s


def a_key_at_the_end_of_what_is_looked_at_is_whole_or_bad():
    for length in 65533, 65534, 65535, 65536, 70000, 200000:
        s = summary("--limit", "1/w", stdin="1 " + "k" * length + "\n")
        assert s["requests"] == (length <= 65534), (length, s["requests"])


def an_empty_input_is_no_error():
    assert "requests                  0\n" in report("--limit", "1/s")
    assert summary("--limit", "1/s")["bins"] == [] and decisions("--limit", "1/s") == []
    assert summary("--suggest")["suggested"] is None


def a_last_line_without_an_end_counts():
    assert summary("--limit", "1/s", stdin="1 a\n2 b")["requests"] == 2


def random_bytes_are_survived():
    random = Random(SEED)
    for _ in range(150):
        content = bytearray(b"".join(random.choice([COMBINED.encode(), b"1.5 a 3\n", b"Dec 10 06:55:48 198.18.0.1 x\n"]) for _ in range(20)))
        for _ in range(random.below(60)):
            at = random.below(len(content))
            content[at:at + random.below(4)] = bytes(random.below(256) for _ in range(random.below(4)))
        s = summary("--limit", "1/s", "--cost", "bytes", "--key", random.choice(["ip", "path", "ip+path", "2"]), stdin=bytes(content))
        lines = [line for line in bytes(content).split(b"\n") if line.strip(b" \t\r") and line[:1] != b"#"]
        assert s["requests"] + s["bad_lines"] <= len(lines) and s["table"]["evicted"] == 0


# ---- files, streams, order ----------------------------------------------------------------------------------------


def standard_input_is_read_for_a_dash_or_no_file():
    want = good("--decisions", "--limit", "10/m", SAMPLE_FILE)
    assert good("--decisions", "--limit", "10/m", "-", stdin=SAMPLE) == want
    assert good("--decisions", "--limit", "10/m", stdin=SAMPLE) == want


def lines_out_of_order_within_the_window_are_sorted():
    log = "".join(f"{t} a\n" for t in range(999, -1, -1))
    compare(plain_requests(log), ["1/3s burst 2"], stdin=log, *["--reorder", "1000"])
    assert summary("--limit", "1/s", "--reorder", "1000", stdin=log)["too_late"] == 0


def a_line_later_than_the_window_is_taken_at_the_time_reached():
    log = "10 a\n20 b\n30 c\n5 a\n"
    s = summary("--limit", "1/7s", "--reorder", "2", stdin=log)
    assert (s["too_late"], s["out_of_order"], s["out_of_order_ns"]) == (1, 1, 25 * 10**9), s
    # 20 was decided before 5 was read, so 5 is taken at 20
    assert decisions("--limit", "1/11s", "--reorder", "2", stdin=log) == [(1, 1, 0, 0), (2, 1, 0, 0), (4, 0, 0, 10**9), (3, 1, 0, 0)]
    assert "1 came too late for --reorder 2" in report("--limit", "1/s", "--reorder", "2", stdin=log)


def requests_of_the_same_time_stay_as_they_stood():
    log = "".join(f"{5 - i // 40} a {i % 7 + 1}\n" for i in range(200))
    compare(plain_requests(log), ["9/s burst 30"], stdin=log)


def several_files_are_merged_by_time():
    first, second = file_of("3 a\n5 a\n", "first"), file_of("1 a\n4 b\n5 a\n", "second")
    out = good("--decisions", "--limit", "1/w burst 2", first, second).decode().split("\n")
    assert [line.split()[:2] for line in out[:-1]] == [["2:1", "1"], ["1:1", "1"], ["2:2", "1"], ["1:2", "0"], ["2:3", "0"]], out


def memory_does_not_grow_with_the_length_of_the_log():
    lines = [f"{i} key{i % 100}\n" for i in range(200000)]
    short = summary("--limit", "1/s", "--reorder", "1000", stdin="".join(lines[:5000]))
    long = summary("--limit", "1/s", "--reorder", "1000", stdin="".join(lines))
    assert long["requests"] == 200000 and long["memory_bytes"] == short["memory_bytes"], (long["memory_bytes"], short["memory_bytes"])


def the_memory_used_is_what_keys_tables_and_window_need():
    count = 131072
    log = "".join(f"1 key{i:06d}\n" for i in range(count))
    s = summary("--limit", "1/s", "--reorder", "1000", stdin=log)
    keys = s["memory_bytes"] - s["table"]["bytes"]
    assert count * (28 + 10 + 8) < keys < count * (32 + 10 + 16) + 400_000, keys / count
    assert count * 8 * 21 < s["table"]["bytes"] < count * 2 * 9 * 22, s["table"]


def the_same_input_gives_the_same_output():
    assert good("--decisions", "--limit", "10/m", SAMPLE_FILE) == good("--decisions", "--limit", "10/m", SAMPLE_FILE)
    first, second = (summary("--limit", "10/m", "--table-keys", "50", SAMPLE_FILE) for _ in range(2))
    for name in "deciding_ns", "whole_ns", "decisions_per_second":
        del first[name], second[name]
    assert first == second


def exact_decisions_do_not_depend_on_the_seed():
    assert good("--decisions", "--limit", "10/m", SAMPLE_FILE) == good("--decisions", "--limit", "10/m", "--seed", "77", SAMPLE_FILE)


# ---- tables -------------------------------------------------------------------------------------------------------


def no_key_is_forced_out_of_the_usual_tables():
    log = "".join(f"1 key{i}\n" for i in range(150000)) + "".join(f"2 key{i}\n" for i in range(0, 150000, 7))
    s = summary("--limit", "1/h", "--limit", "2/d", stdin=log)
    assert s["table"]["evicted"] == 0 and s["keys"] == s["allowed"] == 150000, s["table"]
    assert s["refused"] == len(range(0, 150000, 7))
    assert "exact: no key was forced out" in report("--limit", "1/h", stdin="1 a\n")


def a_small_table_shows_what_it_gets_wrong():
    log = "".join(f"1.{i:04d} key{i}\n" for i in range(2000)) + "".join(f"2.{i:04d} key{i}\n" for i in range(2000))
    s = summary("--limit", "1/h", "--table-keys", "100", stdin=log)
    small = s["small_table"]
    assert s["refused"] == 2000 and s["table"]["evicted"] == 0
    assert small["capacity"] < 400 and small["evicted"] >= 4000 - 2 * small["capacity"] and small["allowed_wrongly"] >= 2000 - small["capacity"], small
    assert small["refused_wrongly"] == 0
    roomy = summary("--limit", "1/h", "--table-keys", "20000", stdin=log)["small_table"]
    assert roomy["evicted"] == roomy["allowed_wrongly"] == 0, roomy
    text = report("--limit", "1/h", "--table-keys", "100", stdin=log)
    assert f"{small['evicted']:,} keys forced out" in text and "a table for 100 keys" in text


def a_full_table_that_refuses_says_so():
    log = "".join(f"1 key{i}\n" for i in range(1000))
    small = summary("--limit", "1/h", "--table-keys", "50", "--full", "refuse", stdin=log)["small_table"]
    assert small["evicted"] == 0 and small["refused_for_room"] == small["refused_wrongly"] >= 1000 - small["capacity"], small


def a_table_that_inherits_lets_no_newcomer_through():
    log = "".join(f"1.{i:04d} key{i}\n" for i in range(1000))
    small = summary("--limit", "1/h", "--table-keys", "50", "--full", "inherit", stdin=log)["small_table"]
    assert small["allowed_wrongly"] == 0 and small["refused_wrongly"] >= 1000 - small["capacity"], small


# ---- options and errors -------------------------------------------------------------------------------------------


def wrong_options_are_refused_with_a_clear_text():
    for args, text in (
        ([], "a limit is missing"),
        (["--limit"], "--limit: a value is missing"),
        (["--limit", "10/x"], "position 4"),
        (["--limit", "10/m burst"], "position 11"),
        (["--limit", ""], "position 1"),
        (["--limit", "0/s"], "zero or too large"),
        (["--limit", "1/s burst 99999999999999999999"], "position 11"),
        (["--limit", "10/x\x1b[31m"], "\\x1b[31m"),
        (["--nonsense"], 'unknown option "--nonsense"'),
        (["-x"], 'unknown option "-x"'),
        (["--limit", "1/s", "--key", "nothing"], "--key"),
        (["--limit", "1/s", "--key", "0"], "--key"),
        (["--limit", "1/s", "--ip-prefix", "129"], "0 to 128"),
        (["--limit", "1/s", "--ip-prefix=6x"], "--ip-prefix"),
        (["--limit", "1/s", "--ipv4-prefix", "33"], "0 to 32"),
        (["--limit", "1/s", "--cost", "money"], "--cost"),
        (["--limit", "1/s", "--table-keys", "0"], "--table-keys"),
        (["--limit", "1/s", "--table-keys", "-1"], "--table-keys"),
        (["--limit", "1/s", "--full", "up"], "--full"),
        (["--limit", "1/s", "--reorder", "0"], "--reorder"),
        (["--limit", "1/s", "--year", "1969"], "--year"),
        (["--limit", "1/s", "--seed", "18446744073709551616"], "--seed"),
        (["--suggest=200%"], "--suggest"),
        (["--suggest=lots"], "--suggest"),
        (["--limit", "1/s", "--json", "--decisions"], "standard output"),
        (["--limit", "1/s", "-", "-"], "only once"),
        (["--limit", "1/s"] * 17, "more than 16"),
    ):
        code, out, err = run(*args)
        assert (code, out) == (2, b"") and text in err and err.startswith("replay: "), (args, code, err)


def the_fault_in_a_limit_is_pointed_at():
    _, _, err = run("--limit", "10/m burts 20")
    lines = err.split("\n")
    assert lines[1][lines[2].index("^"):].startswith("ts 20"), err  # bur is a good beginning


def an_unreadable_file_is_an_error():
    for path, text in (os.path.join(FOLDER.name, "none"), "No such file"), (FOLDER.name, "directory"):
        code, out, err = run("--limit", "1/s", SAMPLE_FILE, path)
        assert (code, out) == (1, b"") and path in err and text in err, (code, err)


def a_full_disk_is_reported():
    if not os.path.exists("/dev/full"):
        raise Skip("no /dev/full")
    for more in [], ["--json"], ["--decisions"], ["--help"]:
        with open("/dev/full", "wb") as full:
            done = subprocess.run([REPLAY, "--limit", "1/s", SAMPLE_FILE, *more], stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 1 and b"No space left" in done.stderr, (more, done)
    code, _, err = run("--limit", "1/s", "--svg", "/dev/full", SAMPLE_FILE)
    assert code == 1 and "/dev/full" in err, (code, err)


def a_closed_pipe_is_reported():
    for more in [], ["--json"], ["--decisions"]:
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([REPLAY, "--limit", "1/s", SAMPLE_FILE, *more], stdout=write, stderr=subprocess.PIPE, timeout=60)
        os.close(write)
        assert done.returncode == 1 and b"Broken pipe" in done.stderr, (more, done)


def a_picture_that_cannot_be_written_is_reported():
    code, _, err = run("--limit", "1/s", "--svg", os.path.join(FOLDER.name, "no", "x.svg"), SAMPLE_FILE)
    assert code == 1 and "No such file" in err


def help_names_every_option_of_the_manual():
    with open(os.path.join(ROOT, "examples", "replay.c")) as f:
        manual = f.read().split("#define")[0]
    text = report("--help")
    names = set(re.findall(r"^ {7}(--[a-z0-9-]+)", manual, re.M)) - {"--help"}
    assert len(names) > 12 and all(name in text for name in names), names


def options_may_follow_files_and_use_equals_signs():
    want = good("--decisions", "--limit", "10/m", "--key", "path", SAMPLE_FILE)
    assert good(SAMPLE_FILE, "--decisions", "--limit=10/m", "--key=path") == want
    assert good("--decisions", "--limit=10/m", "--key=path", "--", SAMPLE_FILE) == want


# ---- reports ------------------------------------------------------------------------------------------------------


def model_counts(limit):
    requests = clf_requests(SAMPLE)
    key_of = {line: key.decode() for _, line, key, _ in requests}
    asked, refused = Counter(), Counter()
    for line, allowed, _, _ in model(requests, limit):
        asked[key_of[line]] += 1
        refused[key_of[line]] += not allowed
    return asked, +refused


def the_summary_in_json_equals_the_models():
    asked, refused = model_counts("10/m burst 20")
    s = summary("--limit", "10/m burst 20", SAMPLE_FILE)
    assert s["limits"] == ["10/m burst 20"]
    assert s["requests"] == sum(asked.values()) and s["keys"] == len(asked)
    assert s["refused"] == sum(refused.values()) and s["allowed"] == s["requests"] - s["refused"]
    assert s["keys_refused"] == len(refused) and abs(s["share_refused"] - s["refused"] / s["requests"]) < 1e-6
    top = s["most_refused"]
    assert [t["refused"] for t in top] == sorted(refused.values(), reverse=True)[:10]
    assert all(refused[t["key"]] == t["refused"] and asked[t["key"]] == t["requests"] for t in top)
    assert s["bad_lines"] == SAMPLE.count(b"\n") - s["requests"] > 0


def the_bins_add_up_and_lie_where_the_requests_do():
    s = summary("--limit", "10/m burst 20", SAMPLE_FILE)
    assert sum(b["allowed"] for b in s["bins"]) == s["allowed"] and sum(b["refused"] for b in s["bins"]) == s["refused"]
    width = s["bin_ns"] // 10**9
    want = Counter(ns // 10**9 // width * width for ns, _, _, _ in clf_requests(SAMPLE))
    for b in s["bins"]:
        at = int(datetime.strptime(b["time"][:19] + " +0000", "%Y-%m-%dT%H:%M:%S %z").timestamp())
        assert want[at] == b["allowed"] + b["refused"], b


def the_time_series_fits_any_span():
    for step, want in ("0.001", 10**6), ("1", 10**9), ("60", 6 * 10**10), ("86400", 864 * 10**11), ("31536000", None):
        whole, _, part = step.partition(".")
        ns = int(whole) * 10**9 + int((part + "0" * 9)[:9])
        log = "".join(f"{i * ns // 10**9}.{i * ns % 10**9:09d} a\n" for i in range(500))
        s = summary("--limit", "1/ms", stdin=log)
        assert len(s["bins"]) <= 1000 and sum(b["allowed"] for b in s["bins"]) == 500, step
        assert want is None or s["bin_ns"] <= want, (step, s["bin_ns"])


def the_report_says_all_there_is_to_say():
    asked, refused = model_counts("10/m burst 20")
    text = report("--limit", "10/m burst 20", SAMPLE_FILE, env={"LC_ALL": "C"})
    assert text.isascii() and text.startswith("10/m burst 20 per address\n")
    for name, value in ("requests", sum(asked.values())), ("keys", len(asked)), ("refused", sum(refused.values())), ("keys refused", len(refused)):
        assert re.search(rf"^  {name} +{value:,}\b", text, re.M), (name, value, text)
    assert f"{100 * sum(refused.values()) / sum(asked.values()):.2f} % of requests" in text
    for key, count in refused.most_common(10)[:5]:
        assert re.search(rf"^  {re.escape(key)} +{count:,} +{asked[key]:,}$", text, re.M), key
    assert "requests per minute     : allowed   # refused" in text
    assert re.search(r"memory: [\d.]+ MB", text) and re.search(r"^  [\d,]+ decisions per second", text, re.M)


def the_chart_is_drawn_to_scale():
    log = "600 a\n" * 100 + "".join(f"{660 + i} b{i % 40}\n" for i in range(40)) + "720 c\n" * 70 + "780 d\n"
    text = report("--limit", "50/w", stdin=log, env={"LC_ALL": "C"})
    rows = [line[13:].ljust(288) for line in text.split("\n") if re.match(r"^ {2}[ \d,]{9} \|", line)]
    assert len(rows) == 10, text
    columns = ["".join(row[x] for row in rows) for x in range(0, 288, 3)]
    drawn = [c for c in columns if c.strip()]
    # from the top, at a scale of 100: 50 refused on 50 allowed; then 10 in each of four bins; 20 refused on 50; 1 is seen
    assert drawn == ["#####:::::"] + 4 * ["         :"] + ["   ##:::::", "         :"], drawn


def utf8_is_used_where_the_terminal_has_it():
    assert "█ refused" in report("--limit", "9/s", stdin="1 a\n", env={"LANG": "C.UTF-8"})
    assert report("--limit", "9/s", stdin="1 a\n", env={"LC_ALL": "C", "LANG": "C.UTF-8"}).isascii()


HOSTILE = ['\x1b[2J\x07', '\x9b2J'.encode("latin-1").decode("latin-1"), '"\\<&>\'', '\u202egnp', '\ufffe\u200b', '</text><script>', '\x7f']


def hostile_keys_harm_neither_terminal_nor_files():
    log = "".join(f"1 {key}\n" * 2 for key in HOSTILE).encode() + b"1 \xff\xc2\n" * 2
    path = os.path.join(FOLDER.name, "hostile.svg")
    text = report("--limit", "1/w", "--svg", path, stdin=log)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u200b\ufffe]", text), text
    assert "\\x1b[2J\\x07" in text and "\\xff\\xc2" in text
    s = summary("--limit", "1/w", stdin=log)
    keys = [t["key"] for t in s["most_refused"]]
    assert len(keys) == len(HOSTILE) + 1 and "\"\\<&>'" in keys and "\\x1b[2J\\x07" in keys, keys
    texts = ["".join(e.itertext()) for e in xml.etree.ElementTree.parse(path).iter()]
    assert "</text><script>" in texts and "\"\\<&>'" in texts


def long_keys_are_cut_where_they_would_break_the_layout():
    text = report("--limit", "1/w", stdin=("1 " + "k" * 5000 + "\n") * 2)
    assert max(map(len, text.split("\n"))) < 130 and "kkk..." in text
    assert summary("--limit", "1/w", stdin=("1 " + "k" * 5000 + "\n") * 2)["most_refused"][0]["key"] == "k" * 5000


def the_picture_is_valid_and_shows_every_request():
    path = os.path.join(FOLDER.name, "x.svg")
    s = summary("--limit", "10/m burst 20", "--svg", path, SAMPLE_FILE)
    root = xml.etree.ElementTree.parse(path).getroot()
    ns = "{http://www.w3.org/2000/svg}"
    assert root.tag == ns + "svg" and "prefers-color-scheme:dark" in root.find(ns + "style").text
    assert root.find(ns + "title").text == "10/m burst 20 per address"
    bars = [re.search(r": ([\d,]+) allowed, ([\d,]+) refused", g.find(ns + "title").text).groups() for g in root.iter(ns + "g")]
    allowed, refused = (sum(int(b[i].replace(",", "")) for b in bars) for i in (0, 1))
    assert (allowed, refused) == (s["allowed"], s["refused"])
    texts = [e.text for e in root.iter(ns + "text")]
    for t in s["most_refused"]:
        assert t["key"] in texts and f"{t['refused']:,} of {t['requests']:,}" in texts, t
    assert "allowed" in texts and "refused" in texts and "14:30" in texts and "0" in texts
    for e in root.iter(ns + "rect"):
        x, y, w, h = (float(e.get(a)) for a in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and w >= 0 and h >= 0 and x + w <= 960.1, e.attrib


def a_picture_of_nothing_is_valid():
    path = os.path.join(FOLDER.name, "nothing.svg")
    for log in "", "nonsense\n", "1 a\n":
        report("--limit", "1/s", "--svg", path, stdin=log)
        xml.etree.ElementTree.parse(path)


# ---- suggestions --------------------------------------------------------------------------------------------------


def two_digit_steps(units, most):
    return [m * 10**e * u for e in range(12) for m in range(10, 100) for u in units if m * 10**e * u <= most]


RATES = list(range(1, 24)) + [24 * i for i in range(1, 60)] + two_digit_steps([144], 10**12)  # tokens per day
BURSTS = list(range(1, 10)) + two_digit_steps([1], 10**6)


def keys_refused(requests, per_day, burst):
    refused, full = set(), {}
    for now, _, key, n in requests:
        debt = max(0, full.get(key, 0) - now * per_day)
        if debt + n * UNITS["d"] > burst * UNITS["d"]:
            refused.add(key)
        else:
            full[key] = max(full.get(key, 0), now * per_day) + n * UNITS["d"]
    return len(refused)


def per_day_and_burst(text):
    limit = Limit(text)
    return limit.tokens * UNITS["d"] // limit.per, limit.burst


def suggestion_is_tight(requests, text, may_refuse):
    rate, burst = per_day_and_burst(text)
    assert rate in RATES and burst in BURSTS, text
    assert keys_refused(requests, rate, burst) <= may_refuse, text
    i, j = RATES.index(rate), BURSTS.index(burst)
    assert i == 0 or keys_refused(requests, RATES[i - 1], burst) > may_refuse, (text, "the rate could be lower")
    assert j == 0 or keys_refused(requests, rate, BURSTS[j - 1]) > may_refuse, (text, "the burst could be lower")


def a_suggested_limit_meets_its_share_and_a_tighter_one_does_not():
    requests = sorted(clf_requests(SAMPLE))
    for share, fraction in ("0.1%", 0.001), ("0.001", 0.001), ("0", 0), ("1%", 0.01), ("20%", 0.2), ("0.7", 0.7), ("100%", 1):
        s = summary("--suggest=" + share, SAMPLE_FILE)
        suggestion_is_tight(requests, s["suggested"], int(s["keys"] * fraction))
        assert s["suggested_keys_refused"] == s["keys_refused"] <= int(s["keys"] * fraction)
        assert summary("--limit", s["suggested"], SAMPLE_FILE)["keys_refused"] == s["keys_refused"]


def a_suggestion_in_bytes_meets_its_share_and_a_tighter_one_does_not():
    requests = sorted(clf_requests(SAMPLE, cost="bytes"))
    s = summary("--suggest", "2%", "--cost", "bytes", SAMPLE_FILE)
    suggestion_is_tight(requests, s["suggested"], int(s["keys"] * 0.02))


def no_other_limit_would_be_tighter_than_the_suggested_one():
    random = Random(SEED)
    for _ in range(25):
        log = "".join(f"{random.below(400)}.{random.below(10**9):09d} key{random.below(3) * random.below(9)}\n" for _ in range(random.between(1, 150)))
        requests = sorted(plain_requests(log))
        may_refuse = random.below(4)
        count = len({r[2] for r in requests})
        s = summary(f"--suggest={min(1, (may_refuse + 0.5) / count):.9f}", stdin=log)
        may_refuse = int(min(1, (may_refuse + 0.5) / count) * count)
        best = None
        for burst in BURSTS:  # the frontier: for each burst the lowest rate
            if best and burst * 1440 >= best[0]:
                break
            low, high = 0, len(RATES) - 1
            if keys_refused(requests, RATES[high], burst) > may_refuse:
                continue
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if keys_refused(requests, RATES[middle], burst) <= may_refuse else (middle + 1, high)
            if best is None or burst * 1440 + RATES[low] < best[0]:
                best = burst * 1440 + RATES[low], RATES[low], burst
        assert per_day_and_burst(s["suggested"]) == best[1:], (s["suggested"], best, log)


def the_suggestion_is_a_line_that_can_be_pasted():
    text = report("--suggest", SAMPLE_FILE)
    line = re.search(r'^--limit "([^"]+)"$', text, re.M)
    assert line and text.startswith(line[1] + " per address\n"), text
    assert report("--limit", line[1], SAMPLE_FILE).split("\n")[0] == line[1] + " per address"


def a_suggestion_is_found_for_standard_input_too():
    assert summary("--suggest", stdin=SAMPLE)["suggested"] == summary("--suggest", SAMPLE_FILE)["suggested"]


def a_share_may_follow_suggest_and_a_file_too():
    assert summary("--suggest", "5%", SAMPLE_FILE)["suggested"] == summary("--suggest=0.05", SAMPLE_FILE)["suggested"]


def a_limit_given_with_suggest_is_the_one_reported():
    s = summary("--suggest", "--limit", "10/m burst 20", SAMPLE_FILE)
    assert s["limits"] == ["10/m burst 20"] and s["refused"] == summary("--limit", "10/m burst 20", SAMPLE_FILE)["refused"] and s["suggested"]
    want = good("--decisions", "--limit", "10/m burst 20", SAMPLE_FILE)
    assert good("--decisions", "--suggest", "--limit", "10/m burst 20", SAMPLE_FILE) == want


# ---- progress -----------------------------------------------------------------------------------------------------


def with_terminal(path, *args, stdin=None):
    """Runs with standard error on a pseudo terminal; returns what appeared there."""
    master, slave = pty.openpty()
    with subprocess.Popen([REPLAY, "--limit", "10/m", *args, *([path] if path else [])], stdout=subprocess.DEVNULL, stderr=slave,
                          stdin=stdin or subprocess.DEVNULL) as p:
        os.close(slave)
        seen = b""
        while True:
            try:
                got = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            if not got:
                break
            seen += got
        assert p.wait() == 0
    os.close(master)
    return seen.decode()


def a_long_input_shows_a_progress_bar_on_a_terminal():
    path = file_of(SAMPLE * 5, "long.log")
    seen = with_terminal(path)
    shares = [int(x) for x in re.findall(r"\[[#.]{40}\] +(\d+) %", seen)]
    assert len(shares) > 5 and shares == sorted(shares) and shares[-1] > 80, seen[-400:]
    assert seen.endswith("\r\x1b[K"), "the bar is left standing"


def a_long_stream_shows_how_much_was_read():
    with subprocess.Popen(["cat", file_of(SAMPLE * 5, "long.log")], stdout=subprocess.PIPE) as cat:
        seen = with_terminal(None, stdin=cat.stdout)
    assert re.search(r"\d\.\d MB read, [\d,]+ keys", seen) and "%" not in seen, seen[-400:]


def nothing_is_shown_for_a_short_input_or_without_a_terminal():
    assert with_terminal(SAMPLE_FILE) == ""
    assert run("--limit", "10/m", file_of(SAMPLE * 5, "long.log"))[2] == ""


# ---- the sample ---------------------------------------------------------------------------------------------------


def the_sample_is_the_same_on_every_machine():
    assert made_log() == SAMPLE == made_log(1) == made_log(1, 60)
    assert hashlib.sha256(SAMPLE).hexdigest() == "92e3b732a0914728dfc8d91c5202edefbff11e396b730b5abb5a2e1807f7cb8d"
    assert made_log(2) != SAMPLE and made_log(2, 7) == made_log(2, 7)


def the_sample_has_a_crowd_a_crawler_and_an_attacker():
    lines = SAMPLE.split(b"\n")
    assert 5000 < len(lines) < 60000
    asked = Counter(key for _, _, key, _ in clf_requests(SAMPLE))
    assert len(asked) > 500 and asked[b"192.0.2.66"] > 1000 and asked[b"203.0.113.200"] > 1000
    assert sum(b'"POST /login' in line for line in lines) > 3000
    s = summary("--limit", "10/m burst 20", SAMPLE_FILE)
    assert 0.01 < s["share_refused"] < 0.5 and s["keys_refused"] < s["keys"] / 20


def the_sample_is_slightly_out_of_order_and_slightly_broken():
    s = summary("--limit", "10/m burst 20", SAMPLE_FILE)
    assert 10 < s["out_of_order"] < s["requests"] / 10 and s["out_of_order_ns"] <= 5 * 10**9
    assert 1 <= s["bad_lines"] <= 10


def the_sample_refuses_wrong_arguments():
    for args in ["x"], ["1", "0"], ["1", "2", "3"], ["-1"], ["1", "99999999"], [""]:
        assert subprocess.run([MAKE_LOG, *args], capture_output=True).returncode == 2, args


# ---- main ---------------------------------------------------------------------------------------------------------


def chosen(words):
    """The functions of this file that are sentences: more than one word, no arguments."""
    tests = [f for f in globals().values() if type(f) is type(chosen) and f.__module__ == "__main__" and "_" in f.__name__ and f.__code__.co_argcount == 0]
    return [f for f in tests if not words or any(word in f.__name__ for word in words)]


def main():
    passed = failed = skipped = 0
    for test in chosen(sys.argv[2:]):
        begin = time.monotonic()
        try:
            test()
            passed += 1
        except Skip as why:
            skipped += 1
            print(f"skipped: {test.__name__}: {why}")
        except Exception as e:  # one must not stop the others
            failed += 1
            print(f"FAILED: {test.__name__} (SEED={SEED}): {type(e).__name__}: {str(e)[:600]}")
        if os.environ.get("TIMES"):
            print(f"{time.monotonic() - begin:6.2f} s  {test.__name__}")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
