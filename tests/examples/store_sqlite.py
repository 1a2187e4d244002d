"""Checks examples/store_sqlite.c: real processes on one real SQLite file. The class at the top checks what every store
of store_command.h promises; store_memcached.py uses it, too."""
import os
import re
import resource
import signal
import sqlite3
import subprocess
import threading
import time

import example
from example import check, equal

PATIENT = ("--timeout", "20000")  # a busy machine is no failure
SLOW = "20/52w"  # a token takes 18 days to come back: none does while this runs
ODD = [b"a b", b"a  b", b" a b", "\u00fcn\u00ef\u00e7\u00f8de \u6771\u4eac".encode(), b"\x01\xff\n\r\n", b"%s",
       b"'; DROP TABLE ratelimit; --", b"x" * 200, b"x" * 201, b"x" * 508, b"x" * 507 + b"y", b"%41", b"A"]
SCOPE = """
#include <stdio.h>
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
int main(int argc, char **argv)
{
    ratelimit_limit limit;
    return argc != 2 || ratelimit_limit_parse(&limit, argv[1]) != RATELIMIT_OK ||
           printf("%u", (unsigned)limit.scope) < 0;
}
"""


def bucket(key, limit=SLOW):
    """What the database has for the bucket of a key: the scope of the limit comes after the key."""
    program = os.path.join(example.folder, "scope")
    if not os.path.exists(program):
        subprocess.run(["cc", "-std=c99", "-I", example.ROOT, "-x", "c", "-", "-o", program], input=SCOPE, text=True,
                       check=True)
    scope = int(subprocess.run([program, limit], capture_output=True, check=True).stdout)
    return (key if isinstance(key, bytes) else key.encode()) + scope.to_bytes(4, "little")


class Store:
    def __init__(self, program, where):
        self.program, self.where = program, where

    def run(self, *words, options=PATIENT, **more):
        """(exit code, standard output, standard error)"""
        run = subprocess.run([self.program, *options, self.where, *words], capture_output=True, timeout=120, **more)
        return run.returncode, run.stdout.decode().strip(), run.stderr.decode().strip()

    def load(self, processes, times, *words):
        return self.run("load", str(processes), str(times), *words)

    def left(self, key, limit):
        """Tokens that could be taken now."""
        found = re.fullmatch(r"allowed, (\d+) of \d+ left", self.run("peek", key, limit)[1])
        return int(found[1]) if found else 0

    def limits(self):
        equal("four processes take the burst, and not one more", self.load(4, 200, "take", "one", SLOW),
              (0, "yes 20, no 780, failed 0", ""))
        equal("another key has a burst of its own", self.load(2, 50, "take", "two", SLOW),
              (0, "yes 20, no 80, failed 0", ""))
        loads = [subprocess.Popen([self.program, *PATIENT, self.where, "load", "2", "100", "take", "three", SLOW],
                                  stdout=subprocess.PIPE, text=True) for _ in range(3)]
        equal("programs that know nothing of each other take one burst together",
              sum(int(re.match(r"yes (\d+)", child.communicate(timeout=120)[0])[1]) for child in loads), 20)
        equal("several tokens are taken all", self.run("take", "n", SLOW, "15"), (0, "allowed, 5 of 20 left", ""))
        code, text, _ = self.run("take", "n", SLOW, "6")
        check("or none, with the time to wait",
              code == 1 and re.fullmatch(r"refused, again in \d+\.\d{3} s", text), text)
        equal("which costs nothing", self.run("peek", "n", SLOW, "5"), (0, "allowed, 5 of 20 left", ""))
        equal("more than the burst is never allowed", self.run("take", "n", SLOW, "21"),
              (1, "never, the most is 20", ""))
        equal("a window aligned to the clock", self.load(3, 50, "take", "aligned", "20/520w window"),
              (0, "yes 20, no 130, failed 0", ""))
        equal("a window that begins with its first use", self.load(3, 50, "window", "own", SLOW),
              (0, "yes 20, no 130, failed 0", ""))
        equal("and says no by itself", self.run("window", "own", SLOW)[0], 1)

    def semaphores(self):
        equal("of a plain semaphore as many places are taken as it has",
              self.load(4, 25, "acquire-plain", "plain", "5", "1h"), (0, "yes 5, no 95, failed 0", ""))
        equal("one given back", self.run("release-plain", "plain"), (0, "ok", ""))
        equal("is one free", self.load(2, 25, "acquire-plain", "plain", "5", "1h"), (0, "yes 1, no 49, failed 0", ""))
        equal("no more are given back than were taken", self.load(2, 25, "release-plain", "plain"),
              (0, "yes 5, no 45, failed 0", ""))
        equal("as many permits are out as allowed", self.load(4, 25, "acquire", "permits", "5", "1h"),
              (0, "yes 5, no 95, failed 0", ""))
        code, permit, _ = self.run("acquire", "mine", "1", "1h")
        equal("a permit is handed out", (code, bool(re.fullmatch(r"\d+\.[0-9a-f]{16}", permit))), (0, True))
        code, text, _ = self.run("acquire", "mine", "1", "1h")
        check("a second one is not", code == 1 and text.startswith("busy, again in "), text)
        other = permit[:-1] + ("1" if permit.endswith("0") else "0")
        equal("who holds another permit can't give it back", self.run("release", "mine", other)[::2], (1, ""))
        equal("it can be extended", self.run("extend", "mine", permit, "2h"), (0, "ok", ""))
        equal("it is still out", self.run("acquire", "mine", "1", "1h")[0], 1)
        equal("it can be given back", self.run("release", "mine", permit), (0, "ok", ""))
        equal("once", self.run("release", "mine", permit)[::2], (1, ""))
        equal("then the next one gets it", self.run("acquire", "mine", "1", "1h")[0], 0)
        equal("a key too long for places is said to be", self.run("acquire", "k" * 251, "1", "1h")[0], 2)
        equal("the longest is not", self.run("acquire", "k" * 250, "1", "1h")[0], 0)
        self.crowd()

    def crowd(self):
        lock, state = threading.Lock(), {"in": 0, "most": 0, "done": 0, "bad": []}

        def work():
            for _ in range(5):
                while (got := self.run("acquire", "crowd", "2", "1h"))[0] == 1:
                    pass
                with lock:
                    state["in"] += 1
                    state["most"] = max(state["most"], state["in"])
                with lock:
                    state["in"] -= 1
                back = self.run("release", "crowd", got[1])
                with lock:
                    state["done"] += 1
                    if got[0] or back != (0, "ok", ""):
                        state["bad"].append((got, back))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        equal("acquire and release by many processes never fail", (state["done"], state["bad"]), (20, []))
        check("and never are more inside than permits", state["most"] <= 2, state["most"])
        equal("in the end all permits are back", self.load(2, 10, "acquire", "crowd", "2", "1h"),
              (0, "yes 2, no 18, failed 0", ""))

    def killed(self, writes):
        """Takes all over, all processes killed: writes(key) is how often the key's record was written."""
        limit = "1000000/7000w"
        load = subprocess.Popen([self.program, *PATIENT, self.where, "load", "3", "1000000", "take", "crash", limit],
                                stdout=subprocess.PIPE, text=True)
        seen = [1000000]
        for child in children_of(load, 3):
            example.wait_until(lambda: self.left("crash", limit) < seen[-1])
            seen.append(self.left("crash", limit))
            os.kill(child, signal.SIGKILL)
        text = load.communicate(timeout=120)[0]
        check("the others go on when one is killed", seen[0] > seen[1] > seen[2] > seen[3], seen)
        left, written = self.left("crash", limit), writes(bucket("crash", limit))
        found = re.match(r"yes (\d+), no 0, failed 0\n3 processes were killed", text)
        if not check("killed processes are reported, and no decision failed", found, text):
            return
        equal("each write is one token", 1000000 - left, written)
        check("of those killed at most the take that was under way has no owner", 0 <= written - int(found[1]) <= 3,
              (written, text))
        equal("what is left can be taken", self.run("take", "crash", limit, str(left))[1], "allowed, 0 of 1000000 left")
        equal("and no more", self.run("take", "crash", limit)[0], 1)

    def killed_holder(self):
        def acquired(ttl):
            return self.run("acquire", "holder", "2", ttl)[0] == 0

        begin = time.monotonic()
        load = subprocess.Popen([self.program, *PATIENT, self.where, *"load 1 1000000 acquire holder 2 2s".split()],
                                stdout=subprocess.DEVNULL)
        child = children_of(load, 1)[0]
        check("a busy semaphore", example.wait_until(lambda: not acquired("2s")))
        os.kill(child, signal.SIGKILL)
        load.wait(timeout=120)
        check("of a holder that was killed comes back", example.wait_until(lambda: acquired("1h")))
        check("not before its time", time.monotonic() - begin >= 2)
        check("all of it", example.wait_until(lambda: acquired("1h")))
        check("and no more", not acquired("1h"))

    def odd_keys(self):
        for key in ODD:
            equal(f"key {key[:30]!r} begins with its whole burst", self.run("take", key, SLOW),
                  (0, "allowed, 19 of 20 left", ""))
        for key in ODD:
            equal(f"key {key[:30]!r} is itself again", self.run("take", key, SLOW, "2"),
                  (0, "allowed, 17 of 20 left", ""))
        equal("a key that is too long is refused", self.run("take", b"x" * 509, SLOW)[::2],
              (2, f"{os.path.basename(self.program)}: bad key"))
        equal("another limit on the same key counts apart", self.run("take", ODD[0], "30/52w"),
              (0, "allowed, 29 of 30 left", ""))

    def usage(self):
        take, peek = ("take", "k", SLOW), ("peek", "k", SLOW)
        for words in [(), ("take",), ("take", "k"), ("take", "", SLOW), ("take", "k", "5"), ("take", "k", "0/s"),
                      (*take, "0"), (*take, "-1"), (*take, "1x"), (*take, "9" * 20), (*take, "1", "2"), ("bla", "k"),
                      ("window", "k", "unlimited"), ("window", "k", "5/h burst 6"), ("acquire", "k", "17", "1s"),
                      ("acquire", "k", "1", "0s"), ("acquire", "k", "1", "1 s"), ("acquire", "k", "1", "s burst 1"),
                      ("release", "k", "1"), ("release", "k", "1.zz"), ("load", "1"), ("load", "1", "1"),
                      ("load", "0", "1", *peek), ("load", "65", "1", *peek), ("load", "1", "1", "load", "1", "1")]:
            code, text, error = self.run(*words)
            check(f"{' '.join(words)!r} is refused with a line that says why",
                  (code, text, error.count("\n")) == (2, "", 0) and error.startswith("store_"), (code, text, error))
        equal("--help is no error", subprocess.run([self.program, "--help"], capture_output=True).returncode, 0)
        equal("an unknown option is", self.run("peek", "k", SLOW, options=["--bla"])[0], 2)

    def other_kind(self):
        self.run("acquire-plain", "semaphore", "5", "1h")
        code, text, error = self.run("window", "semaphore", SLOW)
        check("a semaphore is no window", (code, text) == (3, "refused") and "another kind" in error, (code, text, error))
        equal("the semaphore stays one", self.run("release-plain", "semaphore"), (0, "ok", ""))
        equal("a bucket of the same key is apart", self.run("take", "semaphore", SLOW), (0, "allowed, 19 of 20 left", ""))

    def broken(self, what, text, key="broken", reads_fail=True):
        """The store can't decide about key: the policy does, in bounded time, and says why. For peek only if the key
        can't even be read."""
        begin = time.monotonic()
        got = self.run("take", key, SLOW, options=["--timeout", "300"])
        check(f"{what}: let through, with the reason", got[:2] == (0, "let through") and re.search(text, got[2]), got)
        for op in ("take", "peek")[:2 if reads_fail else 1]:
            got = self.run(op, key, SLOW, options=["--timeout", "300", "--closed"])
            check(f"{what}: {op} is refused if so told", got[:2] == (3, "refused") and re.search(text, got[2]), got)
        if key == "broken":
            got = self.run("acquire", "permits of a broken store", "1", "1h", options=["--timeout", "300"])
            check(f"{what}: no permit", got[:2] == (3, "") and re.search(text, got[2]), got)
        check(f"{what}: within the timeout", time.monotonic() - begin < 15, time.monotonic() - begin)


def children_of(parent, count):
    """The processes that a process has started, as soon as they are so many."""
    def now():
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                    if int(file.read().rsplit(")", 1)[1].split()[1]) == parent.pid:
                        found.append(int(pid))
            except OSError:
                pass
        return found
    example.wait_until(lambda: len(now()) >= count)
    return now()


def rows(path, sql, *values):
    base = sqlite3.connect(path, timeout=60, isolation_level=None)
    found = base.execute(sql, values).fetchall()
    base.close()
    return found


def writes_of(path, key):
    return int.from_bytes(rows(path, "SELECT record FROM ratelimit WHERE key = ?", key)[0][0][20:24], "little")


def first_use(program):
    """Many processes make the same new file."""
    for i in range(5):
        store = Store(program, os.path.join(example.folder, f"new{i}.db"))
        equal("a new file may be made by many at once", store.load(16, 2, "take", "k", SLOW),
              (0, "yes 20, no 12, failed 0", ""))


def locked(store):
    equal("a key before the file is locked", store.run("take", "broken", SLOW)[1], "allowed, 19 of 20 left")
    base = sqlite3.connect(store.where, isolation_level=None)
    base.execute("BEGIN IMMEDIATE")
    store.broken("a locked file", "database is locked", reads_fail=False)
    base.execute("ROLLBACK")
    base.close()
    equal("a locked file costs nothing", store.run("peek", "broken", SLOW)[1], "allowed, 19 of 20 left")


def full(program):
    """No file may grow above 200 KiB, as on a full disk: the log of the database soon can't take any more."""
    store = Store(program, os.path.join(example.folder, "full.db"))
    limit = "10000/7000w"
    store.run("take", "full", limit)
    store.run("take", "spent", SLOW, "20")

    def small():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200 * 1024, 200 * 1024))
    code, text, error = store.run("load", "1", "300", "take", "full", limit, preexec_fn=small, restore_signals=False)
    found = re.fullmatch(r"yes (\d+), no 0, failed (\d+)", text)
    if check("a full disk makes takes fail, not wrong", code == 3 and found and int(found[1]) + int(found[2]) == 300 and
             int(found[2]) > 0, (code, text)):
        equal("what failed was not taken", store.left("full", limit), 9999 - int(found[1]))
    check("and is named", re.search(r"disk I/O error|full", error), error)
    equal("a key that was used up stays so", store.run("take", "spent", SLOW)[0], 1)
    equal("the file is whole", rows(store.where, "PRAGMA integrity_check"), [("ok",)])


def foreign(store):
    whole = "INSERT INTO ratelimit(key, record, gone) VALUES(?, ?, 9000000000000000000)"
    for name, record, text in [("short", b"hello", "no record"), ("long", b"RL2\0" * 7, "no record"),
                               ("empty", b"", "no record"), ("number", 7, "no record"),
                               ("noise", b"\xa5" * 24, "another kind"), ("text", "x" * 24, "another kind")]:
        rows(store.where, whole, bucket(name), record)
        store.broken(f"a row that is none of ours ({name})", text, key=name)
        equal("it stays as it was", rows(store.where, "SELECT record FROM ratelimit WHERE key = ?", bucket(name)),
              [(record,)])
    store.other_kind()


def damaged(program):
    path = os.path.join(example.folder, "none.db")
    with open(path, "wb") as file:
        file.write(b"This is a text, not a database. " * 400)
    Store(program, path).broken("a file that is no database", "file is not a database")
    Store(program, os.path.join(example.folder, "no", "file.db")).broken("a missing folder", "unable to open")
    store = Store(program, os.path.join(example.folder, "damaged.db"))
    store.run("take", "broken", SLOW)
    with open(store.where, "r+b") as file:
        size = os.path.getsize(store.where)
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    store.broken("a damaged file", "malformed|no database|not a database")


def old_rows(store):
    now = time.time_ns()
    rows(store.where, "DELETE FROM ratelimit")
    base = sqlite3.connect(store.where)
    insert = "INSERT INTO ratelimit VALUES(?, zeroblob(24), ?)"
    base.executemany(insert, [(b"old %d" % i, now - 10**9) for i in range(500)])
    base.executemany(insert, [(b"live %d" % i, now + 3600 * 10**9) for i in range(300)])
    base.commit()
    base.close()
    for key in ("a", "b"):
        store.run("take", key, SLOW)
    equal("rows whose time is over are deleted, all others stay",
          rows(store.where, "SELECT substr(key, 1, 3), count(*) FROM ratelimit GROUP BY 1 ORDER BY 1"),
          sorted([(bucket("a")[:3], 1), (bucket("b")[:3], 1), (b"liv", 300)]))
    gone = rows(store.where, "SELECT gone FROM ratelimit WHERE key = ?", bucket("a"))[0][0]
    debt = 52 * 7 * 86400 * 10**9 // 20
    check("a row outlives its debt by a minute", 0 <= gone - debt - 60 * 10**9 - now < 60 * 10**9, gone - debt - now)
    store.run("acquire-plain", "end", "1", "1h")
    store.run("release-plain", "end")
    equal("what says nothing more is deleted at once",
          rows(store.where, "SELECT count(*) FROM ratelimit WHERE key = ?", b"end"), [(0,)])


def main():
    example.need(headers=[("sqlite3.h", "libsqlite3-dev")])
    program = example.build("examples/store_sqlite.c")
    store = Store(program, os.path.join(example.folder, "limits.db"))
    store.usage()
    first_use(program)
    store.limits()
    store.semaphores()
    store.killed(lambda key: writes_of(store.where, key))
    store.killed_holder()
    store.odd_keys()
    locked(store)
    full(program)
    damaged(program)
    equal("the file has a write-ahead log and is whole",
          rows(store.where, "PRAGMA journal_mode") + rows(store.where, "PRAGMA integrity_check"), [("wal",), ("ok",)])
    old_rows(store)
    foreign(store)
    example.done()


if __name__ == "__main__":
    main()
