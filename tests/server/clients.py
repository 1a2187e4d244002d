"""Real clients: redis-cli, redis-benchmark, ioredis, a hiredis program; what README says; wrong requests, answered with
errors that say why."""
import os
import re
import shlex
import socket
import subprocess

from example import ROOT, build, check, equal, head_lines, start, stop
from server.common import (Client, Failed, NODE, PLAIN, ask, ends_cleanly, free_port, path, server, write)

PASSWORD = "s3cret word"


def cli(where, *words, stdin=""):
    run = subprocess.run(["redis-cli", *where, *map(str, words)], input=stdin, text=True, capture_output=True, timeout=60)
    return re.sub(r"\d{6,}", "many", run.stdout.strip().replace("\n", " "))  # ms, of which some have passed


def redis_cli(port, locked):
    here, there = ["-p", str(port)], ["-p", str(locked), "--no-auth-warning"]
    for words, answer in (
            ("PING", "PONG"), ("THROTTLE cli 3 1 3600", "1 3 2 3600 0"), ("CL.THROTTLE cli2 3 1 3600", "0 4 3 -1 3600"),
            ("TAKE cli3 '1/h burst 3' 2", "1 3 1 many 0 OK"), ("RULE login cli", "1 2 1 many 0 OK"),
            ("RULE login vip", "1 9 8 many 0 OK"), ("RULE no x", "ERR there is no such rule, and no rule named default"),
            ("BLOCK cli @login 7200000", "1 2 0 many many OK"), ("RULE login cli", "0 2 0 many many DENIED"),
            ("RESET cli @login", "1 2 2 0 0 OK"), ("PEEK cli @login 2", "1 2 2 0 0 OK")):
        equal(f"redis-cli {words}", cli(here, *shlex.split(words)), answer)
    equal("redis-cli over a unix socket, several commands",
          cli(["-s", path("socket")], stdin="TAKE many 1/h\nTAKE many 1/h\nRESET\nSELECT 0\n"),
          "1 1 0 many 0 OK 0 1 0 many many DENIED RESET OK")
    equal("redis-cli where a password is wanted",
          [cli(there, "PING"), cli([*there, "-a", PASSWORD], "PING"), cli([*there, "--user", "default", "-a", PASSWORD], "PING"),
           cli(there, "AUTH", PASSWORD + "x")[:9], cli(there, "AUTH", PASSWORD[:-1])[:9]],
          ["NOAUTH Authentication required.", "PONG", "PONG", "WRONGPASS", "WRONGPASS"])


def passwords(port, locked):
    equal("before the password nothing is decided, and hardly anything said",
          [str(ask(locked, *words))[:6] for words in (["THROTTLE", "a", 1, 1, 1], ["INFO"], ["COMMAND"], ["ECHO", "x"],
                                                      ["RESET", "a", "1/s"], ["HELLO"], ["HELLO", "2"])], ["NOAUTH"] * 7)
    equal("HELLO with and without a password", [
        ask(locked, "HELLO", "2", "AUTH", "default", PASSWORD, "SETNAME", "me")[0],
        ask(locked, "HELLO", "2", "AUTH", "default", "no")[:9], ask(locked, "HELLO", "2", "AUTH", "me", PASSWORD)[:9],
        ask(port, "HELLO", "3")[:7], ask(port, "HELLO")[4:6], ask(port, "HELLO", "2", "AUTH", "default", "x")[:9],
        ask(port, "HELLO", "2", "WHAT")[:10]],
          [b"server", "WRONGPASS", "WRONGPASS", "NOPROTO", [b"proto", 2], "ERR AUTH:", "ERR syntax"])
    client = Client(locked)
    equal("who gave the password may ask until the end", [client.ask("AUTH", PASSWORD), client.ask("AUTH", "x")[:9],
                                                         client.ask("PING")], ["OK", "WRONGPASS", "PONG"])
    client.close()


def drivers(port, locked):
    program = build("tests/server/client.c", out="server_client")
    run = subprocess.run([program, str(port), path("socket")], text=True, capture_output=True, timeout=60)
    equal("a hiredis program", (run.returncode, run.stdout, run.stderr), (0, "ok\n", ""))
    run = subprocess.run(["node", os.path.join(ROOT, "tests/server/client.js"), str(port), path("socket"), str(locked),
                          PASSWORD], text=True, capture_output=True, timeout=60, env=NODE)
    equal("ioredis", (run.returncode, run.stdout, run.stderr), (0, "ok\n", ""))
    run = subprocess.run(["redis-benchmark", "-p", str(port), "-n", "20000", "-P", "16", "-c", "20", "-q", "TAKE", "bench",
                          "1/d burst 500"], text=True, capture_output=True, timeout=120)
    check("redis-benchmark", run.returncode == 0 and "requests per second" in run.stdout, run)
    equal("what its 20 connections took is exact", ask(port, "PEEK", "bench", "1/d burst 500")[2], 0)


WRONG = (
    (["THROTTLE", "a", "-1", 1, 1], "whole numbers"), (["THROTTLE", "a", 1, 1, 1, "-1"], "whole numbers"),
    (["THROTTLE", "a", 1, 1, "1.5"], "whole numbers"), (["THROTTLE", "a", 1, "", 1], "whole numbers"),
    (["THROTTLE", "a", 2**63, 1, 1], "whole numbers"), (["THROTTLE", "a", 2**64 + 1, 1, 1], "whole numbers"),
    (["THROTTLE", "a", 0, 1, 1], "no limit"), (["THROTTLE", "a", 1, 0, 1], "no limit"),
    (["THROTTLE", "a", 1, 1, 0], "no limit"), (["CL.THROTTLE", "a", 1, 1, 2**62], "no limit"),
    (["CL.THROTTLE", "a", 2**63 - 2, 1, 10], "no limit"), (["THROTTLE", "", 1, 1, 1], "key is empty"),
    (["TAKE", "", "1/s"], "key is empty"), (["TAKE", "a", "1/s", 0], "number of tokens"),
    (["TAKE", "a", "1/s", "x"], "number of tokens"), (["TAKE", "a", "1/s", 2**63], "number of tokens"),
    (["TAKE", "a", "10 per second"], "a limit is"), (["TAKE", "a", ""], "a limit is"), (["TAKE", "a", "0/s"], "a limit is"),
    (["TAKE", "a", "1/s\0"], "a limit is"), (["TAKE", "a", "1/s burst " + "1" * 60], "a limit is"),
    (["TAKE", "a", "@"], "no such rule"), (["TAKE", "a", "@" + "x" * 64], "1 to 63 bytes"),
    (["TAKE", "a", "@lo\0gin"], "1 to 63 bytes"), (["RULE", "", "a"], "no such rule"), (["BLOCK", "a", "1/s", 0], "146 years"),
    (["BLOCK", "a", "1/s", 10**13], "146 years"), (["RESERVE", "a", "1/s", "x"], "number of ms"),
    (["BLOCK", "a", "unlimited", 5], "can't do that"), (["REFUND", "a", "1/s window", 1], "can't do that"),
    (["TAKEALL", "a", "1/s", 1, "b"], "TAKEALL wants"), (["TAKEALL", "a", "1/s", 1, "b", "@login", 1], "or none"),
    (["TAKEALL"] + ["a", "1/s", 1] * 9, "wrong number"), (["SELECT", "1"], "out of range"), (["CLIENT", "KILL"], "subcommand"),
    (["COMMAND", "WHAT"], "subcommand"), (["RESET", "a"], "RESET wants"), ([b"\r\n-X\xff"], "unknown command '??-X?'"),
    (["x" * 3000], "unknown command"), ([""], "unknown command"), (["PING", 1, 2], "wrong number of arguments for 'PING'"),
    (["take"], "wrong number of arguments for 'TAKE'"), (["THROTTLE", "a", 1, 1], "wrong number of arguments for 'THROTTLE'"))


def wrong_requests(port):
    client = Client(port)
    for words, text in WRONG:
        answer = client.ask(*words)
        check(f"{str(words)[:60]} is an error that says why", isinstance(answer, Failed) and text in answer, answer)
    equal("and the connection goes on", client.ask("PING"), "PONG")
    equal("one request that is wrong leaves the others of TAKEALL alone",
          (client.ask("TAKEALL", "w", "1/h", 1, "", "1/h", 1), client.ask("PEEK", "w", "1/h")[2]), ("ERR the key is empty", 1))
    equal("a shadow rule lets through and says what it would do", [client.ask("RULE", "shadow", "s")[::5] for _ in range(2)],
          [[1, "OK"], [1, "DENIED"]])
    names = client.ask("COMMAND")
    equal("COMMAND lists as many as COMMAND COUNT", len(names), client.ask("COMMAND", "COUNT"))
    check("and says where their keys are", all((key == 0) == (step == 0) and arity for _, arity, _, key, _, step in names), names)
    equal("what is in a transaction is not done", [client.ask(*words)[:9] for words in (
        ["MULTI"], ["TAKE", "multi", "1/h"], ["EXEC"], ["EXEC"])] + [client.ask("PEEK", "multi", "1/h")[2]],
          ["ERR there", "ERR not d", "EXECABORT", "ERR there", 1])
    equal("QUIT", (client.ask("QUIT"), client.closed()), ("OK", True))


def readme():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        page = file.read().split("\n## Any language: a server\n")[1].split("\n## ")[0]
    equal("README builds it as its comment says", re.search(r"^cc .*$", page, re.M).group(0),
          head_lines("examples/server/main.c", "Build"))
    words = shlex.split(re.search(r"^printf (.*) > limits.rules$", page, re.M).group(1))[0]
    child, port = server("--rules", write("readme.rules", words.replace("\\n", "\n")), program=PLAIN)
    calls = re.findall(r"^redis-cli -p 6380 (.*?) +# (.*)$", page, re.M)
    check("README shows some calls", len(calls) >= 3, calls)
    for call, answer in calls:
        run = subprocess.run(["redis-cli", "-p", str(port), *shlex.split(call)], text=True, capture_output=True, timeout=60)
        equal(f"README: {call}", run.stdout.split(), answer.split())
    described = set(re.findall(r"[A-Z.]+", " ".join(re.findall(r"^\| (`.*?) \|", page, re.M)))) - {".", "..."}
    listed = {name.decode().upper() for name, _, _, key, _, _ in ask(port, "COMMAND") if key}
    equal("README has all commands that decide", described, listed)
    most = int(re.search(rb"most_bytes:(\d+)", ask(port, "INFO")).group(1)) / 10000
    check("README says how much memory a client can take", f"about {most / 1000:.0f} KB each" in page, most)
    equal("the server of README ends", stop(child), 0)


def run():
    locked, locked_port = server("--password-file", write("password", PASSWORD + "\n"))
    child, port = server("--listen", f"unix:{path('socket')}", "--rules", write(
        "rules", "login 1/h burst 2\nlogin|vip 1/h burst 9\nshadow 1/h shadow\n"), unix=path("socket"))
    redis_cli(port, locked_port)
    passwords(port, locked_port)
    drivers(port, locked_port)
    wrong_requests(port)
    ends_cleanly(locked, "a server with a password")
    ends_cleanly(child, "a server for real clients")
    check("its unix socket is removed", not os.path.exists(path("socket")))
    readme()
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return  # a system without IPv6
    number = free_port()
    child = start(PLAIN, "--listen", f"[::1]:{number}", "--listen", f"unix:{path('six')}", unix=path("six"))
    equal("a server on an IPv6 address", cli(["-h", "::1", "-p", str(number)], "PING"), "PONG")
    equal("ends", stop(child), 0)
