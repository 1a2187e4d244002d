"""Checks examples/store_memcached.c: real processes on a real memcached. What it has in common with store_sqlite.c is
checked by the same lines."""
import hashlib
import os
import re
import signal
import socket
import threading
import time

import example
from example import check, equal
from store_sqlite import ODD, PATIENT, SLOW, Store, bucket, children_of


class Memcached:
    """A server of its own, and a connection to look into it."""

    def __init__(self, *options, port=None):
        self.port = port or example.free_port()
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        self.child = example.start("memcached", "-M", "-U", 0, "-l", "127.0.0.1", "-p", self.port, *user, *options,
                                   port=self.port)
        self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        self.file = self.socket.makefile("rb")

    def ask(self, line, value=None):
        self.socket.sendall(line + b"\r\n" + (value + b"\r\n" if value is not None else b""))
        return self.file.readline().rstrip()

    def get(self, name):
        words = self.ask(b"get " + name).split()
        if words[0] != b"VALUE":
            return None
        value = self.file.read(int(words[3]) + 2)[:-2]
        self.file.readline()
        return value

    def seconds_left(self, name):
        """Until it expires; -1: it does not."""
        found = re.fullmatch(rb"HD t(-?\d+)", self.ask(b"mg " + name + b" t"))
        return int(found[1]) if found else None


def name_of(stored):
    """memcached's name of a key, or of a bucket."""
    text = b"".join(b"%c" % byte if 33 <= byte < 127 and byte != 37 else b"%%%02x" % byte for byte in stored)
    return b"ratelimit:" + (b"=" + text if len(text) <= 200 else b"#" + hashlib.sha256(stored).hexdigest().encode())


def keys(server, store):
    store.odd_keys()
    for key in ODD:
        check(f"key {key[:30]!r} is stored under a name that memcached takes",
              len(server.get(name_of(bucket(key))) or b"") == 24)
    digest = hashlib.sha256(bucket(b"x" * 508)).hexdigest()
    equal("a key that looks like another's hash is not that one", store.run("take", "#" + digest, SLOW),
          (0, "allowed, 19 of 20 left", ""))
    equal("nor one that looks like its name", store.run("take", "ratelimit:#" + digest, SLOW),
          (0, "allowed, 19 of 20 left", ""))


def expiry(server, store):
    def lives(what, name, least, *words):
        store.run(*words)
        got = server.seconds_left(name_of(bucket(name, words[2]) if words[0] == "take" else name))
        check(f"{what} outlives what it says by a minute",
              got == least == -1 or least + 31 <= (got or 0) <= least + 61, got)
    lives("a token of 12 minutes", b"e1", 720, "take", "e1", "5/h")
    lives("a window of an hour", b"e2", 3600, "window", "e2", "5/h")
    lives("a semaphore", b"e3", 3600, "acquire-plain", "e3", "2", "1h")
    lives("an empty one", b"e3", 0, "release-plain", "e3")
    lives("the longest that is no date to memcached", b"e4", 30 * 86400 - 61, "take", "e4", "1/2591939s")
    lives("more than 30 days, by not expiring,", b"e5", -1, "take", "e5", "1/30d")
    equal("so it is still there", store.run("take", "e5", "1/30d")[0], 1)


def vanishing(server, store):
    """A record that is evicted, or deleted, between gets and cas."""
    limit = "1000000/7000w"
    name = name_of(bucket("vanishing", limit))
    load = example.start(store.program, *PATIENT, store.where, "load", 2, 1500, "take", "vanishing", limit)
    while load.poll() is None:
        server.ask(b"delete " + name)
    equal("a record that vanishes is made anew", (load.returncode, example.said(load)),
          (0, "yes 3000, no 0, failed 0\n"))


def silent(server, store):
    equal("a key before memcached stops answering", store.run("take", "broken", SLOW)[1], "allowed, 19 of 20 left")
    server.child.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    store.broken("a memcached that does not answer", "(?i)time ?out")
    check("not sooner either", time.monotonic() - begin >= 0.9)
    server.child.send_signal(signal.SIGCONT)
    equal("that cost nothing", store.run("peek", "broken", SLOW)[1], "allowed, 19 of 20 left")


def silent_under_load(server, store):
    """It stops answering in the middle and comes back: what was taken is known for all but one take of each process."""
    limit = "1000000/7000w"
    load = example.start(store.program, "--timeout", 300, store.where, "load", 3, 200000, "take", "stopped", limit)
    example.wait_until(lambda: store.left("stopped", limit) < 1000000)
    server.child.send_signal(signal.SIGSTOP)
    check("a load says that the store failed", example.wait_until(lambda: "store failed" in example.said(load)))
    server.child.send_signal(signal.SIGCONT)
    before = store.left("stopped", limit)
    check("and goes on when memcached is back", example.wait_until(lambda: store.left("stopped", limit) < before))
    for child in children_of(load, 3):
        os.kill(child, signal.SIGKILL)
    load.wait()
    writes = int.from_bytes(server.get(name_of(bucket("stopped", limit)))[20:24], "little")
    equal("no answer was taken for another's: each write is one token", 1000000 - store.left("stopped", limit), writes)


def foreign(server, store):
    name = name_of(bucket("foreign"))
    for value, text in [(b"hello", "no record"), (b"x" * 24, "another kind"), (b"", "no record"),
                        (b"y" * 5000, "no record")]:
        server.ask(b"set %b 0 0 %d" % (name, len(value)), value)
        store.broken(f"a value that is no record ({len(value)} bytes)", text, key="foreign")
        equal("it stays as it was", server.get(name), value)
    store.other_kind()


def fill(server, size, made=[0]):
    """A thousand values; what memcached says of the last."""
    names = range(made[0], made[0] + 1000)
    made[0] += 1000
    server.socket.sendall(b"".join(b"set fill%09d 0 0 %d\r\n%0*d\r\n" % (i, size, size, i) for i in names))
    return [server.file.readline().rstrip() for _ in names][-1]


def full():
    """memcached -M does not evict, so a full one fails instead of forgetting."""
    server = Memcached("-m", "2")
    store = Store(program, f"127.0.0.1:{server.port}")
    store.run("take", "spent", SLOW, "20")
    for size in (40, 80, 110):  # records under short names and under hashes
        example.wait_until(lambda: fill(server, size) == b"SERVER_ERROR out of memory storing object")
    store.broken("a full memcached", "(?i)allocate|memory", reads_fail=False)
    equal("a key that was used up stays so", store.run("take", "spent", SLOW)[0], 1)
    example.stop(server.child, signal.SIGKILL)


def wrong_answers():
    """A server that answers a request with something else: never taken for a key that is not there."""
    value = b"VALUE " + name_of(bucket("k"))
    for answer in (b"SERVER_ERROR busy\r\n", b"CLIENT_ERROR no\r\n", b"rubbish\r\n", b"\r\n", b"",
                   value + b" 0 24 7\r\nshort", value + b" 0 24\r\n" + b"x" * 24 + b"\r\nEND\r\n"):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def serve():
                with listener.accept()[0] as client:
                    client.recv(1000)
                    client.sendall(answer)
            server = threading.Thread(target=serve)
            server.start()
            got = Store(program, f"127.0.0.1:{listener.getsockname()[1]}").run("peek", "k", SLOW, options=["--closed"])
            server.join()
        check(f"the answer {answer[:30]!r} is a failure",
              got[:2] == (3, "refused") and "store failed: gets: " in got[2], got)


def gone(server, store):
    example.stop(server.child, signal.SIGKILL)
    store.broken("no memcached", "CONNECTION FAILURE|refused")
    again = Memcached(port=server.port)
    equal("one that is back decides again", store.run("take", "broken", SLOW), (0, "allowed, 19 of 20 left", ""))
    example.stop(again.child, signal.SIGKILL)


def unix_socket():
    path = os.path.join(example.folder, "memcached.sock")
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    os.chmod(example.folder, 0o777)
    child = example.start("memcached", "-s", path, "-a", "0777", *user, unix=path)
    equal("a Unix socket", Store(program, path).load(2, 30, "take", "u", SLOW), (0, "yes 20, no 40, failed 0", ""))
    example.stop(child, signal.SIGKILL)
    Store(program, path).broken("nobody behind a Unix socket", "(?i)connection|no such")


def main():
    server = Memcached()
    store = Store(program, f"127.0.0.1:{server.port}")
    store.usage()
    for where in ("localhost", "localhost:", ":11211", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:1x", ""):
        got = Store(program, where).run("peek", "k", SLOW)
        check(f"{where!r} is no place", got[:2] == (2, "") and got[2], got)
    store.limits()
    store.semaphores()
    store.killed(lambda key: int.from_bytes(server.get(name_of(key))[20:24], "little"))
    store.killed_holder()
    keys(server, store)
    expiry(server, store)
    foreign(server, store)
    vanishing(server, store)
    silent(server, store)
    silent_under_load(server, store)
    gone(server, store)
    full()
    wrong_answers()
    unix_socket()
    example.done()


example.need(programs=[("memcached", "memcached")],
             headers=[("libmemcached/memcached.h", "libmemcached-dev"), ("openssl/sha.h", "libssl-dev")])
program = example.build("examples/store_memcached.c")
main()
