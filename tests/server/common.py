"""What the checks of examples/server share: building it, starting it, a client of Redis' protocol."""
import os
import random
import re
import resource
import socket
import subprocess

import example
from example import BUILD, build, check, equal, folder, free_port, http, need, said, start, stop

need([("redis-cli", "redis-tools"), ("redis-benchmark", "redis-tools"), ("node", "nodejs")],
     [("event2/event.h", "libevent-dev"), ("hiredis/hiredis.h", "libhiredis-dev")])
NODE = {**os.environ, "NODE_PATH": os.pathsep.join(filter(None, [
    os.path.join(os.path.dirname(BUILD), "node", "node_modules"), os.environ.get("NODE_PATH")]))}
if subprocess.run(["node", "-e", "require('ioredis')"], env=NODE, capture_output=True).returncode:
    example.missing("ioredis", "npm package ioredis")

SERVER = build("examples/server/main.c")
PLAIN = build("examples/server/main.c", out="ratelimit_server_plain", sanitized=False)
SEED = int(os.environ.get("SEED", random.randrange(10**9)))
FILES = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 12000)
resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def path(name):
    return os.path.join(folder, name)


def write(name, words):
    """Puts a file there whole; its path."""
    with open(path(name) + ".new", "w", encoding="utf-8") as file:
        file.write(words)
    os.replace(path(name) + ".new", path(name))
    return path(name)


def server(*options, program=SERVER, **more):
    port = free_port()
    return start(program, "--listen", f"127.0.0.1:{port}", *options, port=port, **more), port


def refused(*options):
    """What a server says that does not start, and its exit code."""
    run = subprocess.run([SERVER, *options], text=True, capture_output=True, timeout=60)
    return run.returncode, run.stderr, run.stdout


def no_fault_found(child, what):
    equal(f"the sanitizers find nothing in {what}", re.findall(r"ERROR: .*|runtime error: .*", said(child)), [])


def ends_cleanly(child, what):
    """With leaks or anything else found by the sanitizers it would not be 0."""
    equal(f"{what} ends with exit code 0 on SIGTERM", stop(child), 0)
    no_fault_found(child, what)


class Failed(str):
    """An error that the server answered."""


def encode(words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Client:
    """A connection to a port, or to a unix socket's path."""

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
            whole = [self.answer() for _ in range(int(rest))]
            return whole if None not in whole else None
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
    """One request on a connection of its own."""
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
