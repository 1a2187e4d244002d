"""The same lines through one program that keeps its buckets here or there, as a file says."""
import os
import re
import signal
import subprocess

from example import build, check, done, equal, folder, need, redis, stop, wait_until

need(programs=[("redis-server", "redis-server")], headers=[("ini.h", "libinih-dev"),
                                                           ("hiredis/hiredis.h", "libhiredis-dev")])
program = build("examples/config.c")
server, port = redis()
RULES = "[rules]\nlogin = 5/h burst 10\nreport = 3/d window\nlogin|root = 1/h\nquiet = 1/h shadow\n"


def configure(text):
    path = os.path.join(folder, "test.ini")
    with open(path, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    return path


def ask(text, lines, **more):
    return subprocess.run([program, configure(text)], input="".join(line + "\n" for line in lines), text=True,
                          capture_output=True, timeout=60, **more)


def decisions(run):
    """What was decided, without how long the refused must wait: that is the clock's."""
    return [re.sub(r"again in [\d.]+ s", "again", line) for line in run.stdout.splitlines()]


def with_redis(prefix, more="", limiter=""):
    return f"[limiter]\nstore = redis\n{limiter}\n[redis]\nport = {port}\nprefix = {prefix}:\n{more}\n" + RULES


# ---- the same decisions

EVENTS = (["login alice"] * 12 + ["login bob", "report alice"] + ["report carol"] * 4 + ["login|root x"] * 2 +
          ["quiet x"] * 3 + ["nothing x"])
WANTED = ([f"login alice: allowed, {left} left" for left in range(9, -1, -1)] + ["login alice: refused, again"] * 2 +
          ["login bob: allowed, 9 left", "report alice: allowed, 2 left"] +
          [f"report carol: allowed, {left} left" for left in (2, 1, 0)] + ["report carol: refused, again"] +
          ["login|root x: allowed, 0 left", "login|root x: refused, again"] +
          ["quiet x: allowed, 0 left"] * 3 + ["nothing x: refused, there is no such rule"])
alone = ask(RULES, EVENTS)
equal("a program on its own decides as its rules say", decisions(alone), WANTED)
shared = ask(with_redis("a"), EVENTS)
equal("on Redis it decides the same", decisions(shared), WANTED)
equal("neither complains", (alone.stderr, shared.stderr, alone.returncode, shared.returncode), ("", "", 0, 0))
for line in alone.stdout.splitlines():
    again = re.match(r"login alice: refused, again in ([\d.]+) s", line)
    check("a refusal says when the next token comes, at most an interval away",
          not again or 600 < float(again[1]) <= 720, line)
tiered = ask(with_redis("tier", "lease_percent = 50\nnodes = 2\n"), EVENTS)
allowed = [line.split(",")[0] for line in decisions(tiered)]
equal("with a tier in front the same are allowed", allowed, [line.split(",")[0] for line in WANTED])

# ---- who shares

equal("two programs on their own do not share", decisions(ask(RULES, ["login dave"])), ["login dave: allowed, 9 left"])
equal("two programs on Redis do", decisions(ask(with_redis("a"), ["login alice", "login dave"])),
      ["login alice: refused, again", "login dave: allowed, 9 left"])
equal("under another prefix they do not", decisions(ask(with_redis("b"), ["login alice"])),
      ["login alice: allowed, 9 left"])
path = configure(with_redis("c"))
several = [subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
           for _ in range(4)]
for child in several:
    child.stdin.write("login erin\n" * 50)
    child.stdin.close()
total = sum(child.stdout.read().count("allowed") for child in several)
equal("four at once share a burst of 10", total, 10)
equal("and end well", [child.wait(20) for child in several], [0] * 4)

# ---- when Redis is out of reach

server.send_signal(signal.SIGSTOP)
run = ask(with_redis("a"), ["login alice"])
check("while Redis hangs the policy lets through, and says why",
      re.match(r"login alice: allowed \(.+\)", run.stdout) and run.returncode == 0, run.stdout)
server.send_signal(signal.SIGCONT)
check("Redis comes back", wait_until(lambda: "left" in ask(with_redis("d"), ["login alice"]).stdout))
stop(server, signal.SIGKILL)
for policy, word in (("open", "allowed"), ("closed", "refused")):
    run = ask(with_redis("a", limiter=f"on_failure = {policy}"), ["login alice"] * 3)
    check(f"without Redis on_failure = {policy} means {word}",
          len(run.stdout.splitlines()) == 3 and
          all(re.match(rf"login alice: {word} \(.+\)", line) for line in run.stdout.splitlines()), run.stdout)
run = ask(with_redis("a", "nodes = 2\n"), ["login alice"] * 12)
equal("without Redis each of two nodes lets its half through",
      [line.split(",")[0] for line in run.stdout.splitlines()],
      ["login alice: allowed"] * 5 + ["login alice: refused"] * 7)

# ---- what is wrong is said, with its line

WRONG = [
    ("[rules]\nlogin = 5/h\nlogin = 6/h\n", r":3: rule login: a name that was there before"),
    ("[rules]\nlogin = 5 per hour\n", r":2: rule login: "),
    ("[rules]\n\nlogin = 0/s\n", r":3: rule login: "),
    ("[rules]\nlogin =\n", r":2: rule login: "),
    ("[rules]\nlogin 5/h\n", r":2: not a line"),
    ("[rules\nlogin = 5/h\n", r":1: not a line"),
    ("[rules]\n" + "x" * 70 + " = 5/h\n", r":2: rule x+: "),
    ("[rules]\na = 5/h\n" + "b = 5/h " + " " * 300 + "burst 10\n", r":3: a line of more than"),
    (b"[rules]\nlogin = 5/h\0 burst 10\n", r":2: a NUL byte"),
    (b"[rules]\nlogin = 5/h\0x", r":2: a NUL byte"),
    ("[rules]\n" + "".join(f"r{i} = 5/h\n" for i in range(201)), r":202: rule r200: "),
    ("[limiter]\nstore = memcached\n" + RULES, r':2: store wants table or redis, not "memcached"'),
    ("[limiter]\nkeys = many\n" + RULES, r":2: keys wants a number"),
    ("[limiter]\nkeys = 0\n" + RULES, r":2: keys wants a number"),
    ("[limiter]\nkeys = -1\n" + RULES, r":2: keys wants a number"),
    ("[limiter]\nkeys = 99999999999999999999\n" + RULES, r":2: keys wants a number"),
    ("[limiter]\non_failure = maybe\n" + RULES, r":2: on_failure wants open or closed"),
    ("[limiter]\nkey = 1\n" + RULES, r":2: unknown setting \[limiter\] key"),
    ("[redes]\nport = 1\n" + RULES, r":2: unknown setting \[redes\] port"),
    ("[redis]\nport = 65536\n" + RULES, r":2: port wants a number from 1 to 65535"),
    ("[redis]\nlease_percent = 101\n" + RULES, r":2: lease_percent wants"),
    ("[redis]\nhost = " + "h" * 64 + "\n" + RULES, r":2: host is longer"),
    ("", r": no \[rules\]"),
    ("[limiter]\nstore = table\n", r": no \[rules\]"),
    (b"\x00\xff\xfe\n", r":1: a NUL byte"),
    (b"\xff\xfe\n", r":1: not a line"),
]
for text, said in WRONG:
    run = ask(text, ["login alice"])
    check("a wrong file is refused with its line", run.returncode == 2 and not run.stdout and
          re.match(r"config: \S+test\.ini" + said, run.stderr), f"{text[:60]!r}: {run.returncode} {run.stderr!r}")
run = subprocess.run([program, "/nowhere/at/all.ini"], text=True, capture_output=True)
check("a missing file is named", run.returncode == 2 and "/nowhere/at/all.ini: No such file" in run.stderr, run.stderr)
run = subprocess.run([program], text=True, capture_output=True)
check("without a file it says how it is used", run.returncode == 2 and "usage" in run.stderr, run.stderr)

# ---- odd lines

run = ask(RULES, ["", "login", "login a b", "x" * 5000 + " y", "login " + "k" * 900, "  login \t zoe "])
equal("lines that are no events are answered, and change nothing",
      [line[:30] for line in run.stdout.splitlines()],
      ["a line is a rule and a key, of"] * 3 + [("login " + "k" * 30)[:30], "login zoe: allowed, 9 left"])
long = [line for line in run.stdout.splitlines() if "kkk" in line][0]
check("a long key is decided as any other", "allowed, 9 left" in long, long[-60:])

# ---- the file that comes with it

run = subprocess.run([program, "examples/config.ini"], input="api|beta x\nelse y\nsearch z\n", text=True,
                     capture_output=True, cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
equal("config.ini is a right one", decisions(run), ["api|beta x: allowed, 9 left", "else y: allowed, 49 left",
                                                    "search z: allowed, 19 left"])
done()
