"""A server of several processes with one table in a file: workers and servers are killed, limits hold."""
import os
import random
import signal
import socket
import subprocess
import threading
import time

from example import build, check, done, equal, folder, free_port, start, stop, wait_until

BURST = 300
LIMIT = f"1/h burst {BURST}"  # nothing comes back while this runs
program = build("examples/prefork.c")
seed = int(os.environ.get("SEED", "1"))
choose = random.Random(seed)


def serve(path, workers=4, limit=LIMIT):
    port = free_port()
    server = start(program, path, "--port", port, "--workers", workers, "--limit", limit, port=port)
    server.port = port
    return server


def workers(server):
    try:
        with open(f"/proc/{server.pid}/task/{server.pid}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def connect(server, address="127.0.0.1"):
    s = socket.socket()
    s.settimeout(30)
    s.bind((address, 0))
    s.connect(("127.0.0.1", server.port))
    return s


def ask(server, lines, address="127.0.0.1"):
    """The answers to so many lines, sent at once."""
    with connect(server, address) as s:
        s.sendall(b"hello\n" * lines)
        return read(s, lines)


def read(s, lines):
    with s.makefile("rb") as file:
        return [file.readline() for _ in range(lines)]


def in_threads(work, count):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---- one limit over all workers

table = os.path.join(folder, "limits.table")
server = serve(table)
check("four workers are there", wait_until(lambda: len(workers(server)) == 4))
answers = []
in_threads(lambda i: answers.extend(ask(server, 40)), 20)
equal("all workers together let the burst through, exactly", sum(line.startswith(b"ok") for line in answers), BURST)
equal("each value of what is left is told once",
      sorted(int(line.split()[1]) for line in answers if line.startswith(b"ok")), list(range(BURST)))
check("the others are told to wait, at most an hour",
      all(0 < int(line.split()[1]) <= 3600 for line in answers if not line.startswith(b"ok")))
equal("all are answered", len(answers), 800)
equal("another address has its own limit", ask(server, 2, "127.0.0.2"), [b"ok 299\n", b"ok 298\n"])

# ---- over a restart

equal("SIGTERM ends it", stop(server), 0)
server = serve(table, workers=1)
check("after a restart who was refused is refused", ask(server, 1)[0].startswith(b"wait"))
equal("and who had tokens left has as many", ask(server, 1, "127.0.0.2"), [b"ok 297\n"])
second = subprocess.run([program, table, "--port", str(free_port())], text=True, capture_output=True, timeout=20)
check("a second server on the file is refused", second.returncode == 1 and "another server uses it" in second.stderr,
      second.stderr)
left = workers(server)
stop(server, signal.SIGKILL)
check("when the parent is killed the workers end", wait_until(lambda: not any(os.path.exists(f"/proc/{p}") for p in left)))
server = serve(table)
equal("and the next server goes on where it was", ask(server, 1, "127.0.0.2"), [b"ok 296\n"])
stop(server)

# ---- workers killed at any moment

server = serve(os.path.join(folder, "killed.table"))
counts = {"ok": 0, "wait": 0, "unanswered": 0, "kills": 0}
lock = threading.Lock()
over = threading.Event()


def client(_):
    while not over.is_set():
        try:
            with connect(server) as s, s.makefile("rb") as file:
                for _ in range(50):
                    s.sendall(b"hello\n")
                    answer = file.readline()
                    with lock:
                        counts[answer.split()[0].decode() if answer.endswith(b"\n") else "unanswered"] += 1
                    if not answer or over.is_set():
                        break
        except OSError:  # reset: the line may have been counted
            with lock:
                counts["unanswered"] += 1


def killer(_):
    end = time.monotonic() + 60
    while time.monotonic() < end and counts["kills"] < 60 and (counts["kills"] < 20 or counts["wait"] < 100):
        pids = workers(server)
        try:
            if pids:
                os.kill(choose.choice(pids), signal.SIGKILL)
                counts["kills"] += 1
        except ProcessLookupError:  # it has ended meanwhile
            pass
        over.wait(choose.random() * 0.02)
    over.set()


in_threads(lambda i: killer(i) if i == 0 else client(i), 7)
check("workers were killed under load", counts["kills"] >= 20 and counts["ok"] > 0, counts)
if not check("killed workers are replaced", wait_until(lambda: len(workers(server)) == 4), workers(server)):
    done()
total = counts["ok"] + sum(line.startswith(b"ok") for line in ask(server, BURST + 50))
check(f"never more than the burst is let through (SEED={seed})", total <= BURST, (total, counts))
check(f"what is missing are lines whose worker died before it answered (SEED={seed})",
      BURST - total <= counts["unanswered"], (total, counts))
equal("it still ends well", stop(server), 0)

# ---- lines and connections

server = serve(os.path.join(folder, "lines.table"), workers=1)
with connect(server) as s:
    s.sendall(b"x" * 5000)
    try:
        gone = s.recv(100)
    except ConnectionResetError:
        gone = b""
    equal("a line that does not end ends the connection", gone, b"")
equal("and costs nothing", ask(server, 1), [b"ok 299\n"])
with connect(server) as s:
    for part in (b"he", b"ll", b"o\nhel"):
        s.sendall(part)
    equal("a line may come in pieces", read(s, 1), [b"ok 298\n"])
    s.sendall(b"lo\n")
    equal("and the next one, too", read(s, 1), [b"ok 297\n"])
stop(server)

# ---- files that are none of ours

with open(table, "rb") as file:
    good = file.read()
for name, content in (("empty", b""), ("short", good[:-1]), ("long", good + b"\0"), ("foreign", b"#!/bin/sh\n" * 1000),
                      ("zeros", b"\0" * len(good)), ("damaged", good[:16] + b"\xff" * 8 + good[24:])):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(content)
    run = subprocess.run([program, path, "--port", str(free_port())], text=True, capture_output=True, timeout=20)
    check(f"a file that is {name} is refused in words", run.returncode == 1 and "left as it is" in run.stderr, run.stderr)
    with open(path, "rb") as file:
        check(f"a file that is {name} is left as it was", file.read() == content)
run = subprocess.run([program, "/nowhere/at/all"], text=True, capture_output=True, timeout=20)
check("a folder that is missing is named", run.returncode == 1 and "/nowhere/at/all" in run.stderr, run.stderr)
check("no drafts are left", not [name for name in os.listdir(folder) if name.startswith("limits.table.")])
for wrong in ([], ["--port", "1"], [table, "--port", "0"], [table, "--port", "65536"], [table, "--workers", "0"],
              [table, "--workers", "many"], [table, "--limit", "5 per minute"], [table, "--limit"],
              [table, "--bind", "localhost"], [table, "--loud", "1"]):
    run = subprocess.run([program, *wrong], text=True, capture_output=True, timeout=20)
    check("a wrong command line is refused in words", run.returncode == 2 and run.stderr.startswith("prefork: "),
          f"{wrong}: {run.returncode} {run.stderr}")
done()
