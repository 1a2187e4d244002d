#!/usr/bin/env python3
"""coverage.py - which lines and branches of the headers the tests reach, by section.

    coverage.py BUILD [redis]

Builds the unit tests (TESTS: only these) with gcc --coverage, runs them, adds up what gcov says. "redis": the
companion's tests, which want the servers of "tests/redis/run.sh with". What is not reached is listed in BUILD/coverage/unreached,
with how often each branch was taken. In the
sections arithmetic, bucket and table each such place is explained in unreached.txt beside this file, by the text of
its line, or the run fails:

    - the line as it stands in the header
    why a reason

which is also the reason for lines just below it that are not run.
"""
import collections
import glob
import gzip
import json
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
REDIS = ["vectors_redis", "test_store", "test_failures", "test_locks", "test_shards", "test_deployments", "test_tls",
         "test_replies", "test_async", "test_async_tls", "test_memory", "test_memory_tls", "test_cluster"]  # the last one kills nodes of the cluster
MUST = ("arithmetic", "bucket", "table")
SECONDS = 1800  # for what hangs
# What a child of fork has run counts, too; gcov forgets it at _exit.
CHILDREN = """
void __gcov_dump(void);
void __real__exit(int code);
void __wrap__exit(int code);
void __wrap__exit(int code)
{
    __gcov_dump();
    __real__exit(code);
}
"""


def squeeze(text):
    return " ".join(text.rstrip("\\ ").split())


def sections_of(lines):
    """The name of the section of each line."""
    names, name = [], ""
    for line in lines:
        start = re.match(r"/\* ---- >>implementation: ([^*\n]*?)[ -]*(?:\*/)?$", line)
        name = start.group(1) if start else name
        names.append(name)
    return names


def tests_of(redis):
    if redis:
        tests = ["redis/" + test for test in REDIS]
    else:
        files = sorted(glob.glob(os.path.join(ROOT, "tests", "test_*.c")))
        tests = ["vectors", "known_answers"] + [os.path.basename(file)[:-2] for file in files]
    wanted = os.environ.get("TESTS", "").split()
    return [(test, ["-levent"] * ("async" in test) + ["-lssl", "-lcrypto"] * ("tls" in test) + ["-lhiredis"] * redis)
            for test in tests if not wanted or os.path.basename(test) in wanted]


def gather(build, header, redis):
    """For each line of the header how often it was run, and of each of its branches how often it was taken."""
    counts = collections.Counter()
    branches = collections.defaultdict(list)
    bad = []
    children = os.path.join(build, "children.c")
    with open(children, "w", encoding="utf-8") as source:
        source.write(CHILDREN)
    for test, libraries in tests_of(redis):
        folder = os.path.join(build, os.path.basename(test))
        os.makedirs(folder)
        program = os.path.join(folder, "test")
        subprocess.run(["gcc", "-std=c99", "-O0", "--coverage", "-w", "-Dalways_inline=unused", "-pthread", "-I", ROOT,
                        "-I", ROOT + "/tests", "-I", ROOT + "/tests/redis", os.path.join(ROOT, "tests", test + ".c"),
                        children, "-Wl,--wrap=_exit", "-o", program] + libraries, cwd=folder, check=True)
        print("runs: " + test, flush=True)
        with open(os.path.join(folder, "said"), "wb") as said:
            done = subprocess.run([program], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                  timeout=SECONDS)
        if done.returncode:
            bad.append(test)
        subprocess.run(["gcov", "--json-format", "--branch-probabilities"] + glob.glob(folder + "/*.gcda"), cwd=folder,
                       check=True, stdout=subprocess.DEVNULL)
        for name in glob.glob(folder + "/*.json.gz"):
            add(counts, branches, json.load(gzip.open(name)), header)
    return counts, branches, bad


def add(counts, branches, data, header):
    for file in data["files"]:
        if os.path.basename(file["file"]) != header:
            continue
        for line in file["lines"]:
            number = line["line_number"]
            counts[number] += line["count"]
            # Nothing is inlined (see the options above), or each place would have branches of its own.
            key = number, len(line["branches"])
            taken = [branch["count"] for branch in line["branches"]]
            old = branches[key] or [0] * len(taken)
            branches[key] = [a + b for a, b in zip(old, taken)]


def explained():
    entries, line = {}, None
    for text in open(os.path.join(HERE, "unreached.txt"), encoding="utf-8"):
        head, _, rest = text.strip().partition(" ")
        if head == "-":
            line = squeeze(rest)
        elif head == "why" and line and rest:
            entries[line] = rest
    return entries


def main():
    redis = sys.argv[2:] == ["redis"]
    header = "ratelimit_redis.h" if redis else "ratelimit.h"
    build = os.path.join(os.path.abspath(sys.argv[1]), "coverage")
    shutil.rmtree(build, ignore_errors=True)
    os.makedirs(build)
    lines = open(os.path.join(ROOT, header), encoding="utf-8").read().split("\n")
    names = sections_of(lines)
    counts, branches, bad = gather(build, header, redis)
    known = explained()
    rows = collections.OrderedDict()
    open_ends, before = [], None
    with open(os.path.join(build, "unreached"), "w", encoding="utf-8") as unreached:
        for number in sorted(counts):
            name, text = names[number - 1], lines[number - 1]
            row = rows.setdefault(name, [0] * 5)
            taken = max((b for (n, _), b in branches.items() if n == number), key=len)
            missed = taken.count(0) if counts[number] else len(taken)
            row[0] += 1
            row[1] += counts[number] > 0
            row[2] += len(taken)
            row[3] += len(taken) - missed
            if text.strip() == "}":  # it is reached if what is above it is
                continue
            if counts[number] and not missed:
                before = None
                continue
            why = known.get(squeeze(text)) or (not counts[number] and before)
            row[4] += (missed or 1) if why else 0
            unreached.write("%d: %s: %s %s\n" % (number, name, "branches " + " ".join(map(str, taken))
                                                 if counts[number] else "not run", text.strip()))
            before = why
            if not why and name in MUST:
                open_ends.append("%d: %s" % (number, text.strip()))
    print("%-32s %6s %9s %9s %9s %9s" % (header, "lines", "reached", "branches", "reached", "explained"))
    for name, row in rows.items():
        print("%-32s %6d %8.1f%% %9d %8.1f%% %9d" % (name or "interface", row[0], 100 * row[1] / row[0], row[2],
                                                     100 * row[3] / row[2] if row[2] else 100, row[4]))
    all_of = [sum(row[i] for row in rows.values()) for i in range(5)]
    print("%-32s %6d %8.1f%% %9d %8.1f%% %9d" % ("all", all_of[0], 100 * all_of[1] / all_of[0], all_of[2],
                                                 100 * all_of[3] / all_of[2], all_of[4]))
    for text in open_ends:
        print("FAILED: not reached and not explained: " + text)
    for test in bad:
        print("FAILED: %s fails" % test)
    print("%d passed, %d failed" % (all_of[3], len(open_ends) + len(bad)))
    sys.exit(1 if open_ends or bad else 0)


if __name__ == "__main__":
    main()
