"""What the checks of the examples share: an example is built with the very command that its own comment gives, run
against real parts on private ports of the loopback, and looked at from outside, as its users would.

In the comment at the head of an example, one line each (ended by a backslash it goes on in the next):

    Package: libmicrohttpd-dev curl           Debian's packages to build it and to run its check
    Build:   cc -std=c99 -I. examples/http_server/server.c -o http_server -lmicrohttpd

A check is tests/examples/NAME.py [BUILD]. Each prints what failed and ends with "N passed, N failed" (", N skipped").
SKIP_MISSING=1: an example whose package is missing counts as skipped; without it that is a failure.
"""
import atexit
import glob
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build")), "examples")
WARNINGS = ("-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Wcast-qual -Wvla "
            "-Wdouble-promotion -Werror").split()
WARNINGS_C = ["-Wstrict-prototypes", "-Wmissing-prototypes"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]

passed = failed = skipped = 0
children = []
folder = tempfile.mkdtemp()


def check(sentence, right, detail=""):
    """Counts; says what is wrong, with the detail, if it is."""
    global passed, failed
    if right:
        passed += 1
    else:
        failed += 1
        print(f"FAILED: {sentence}" + (f": {detail}" if detail != "" else ""), flush=True)
    return bool(right)


def equal(sentence, got, wanted):
    return check(sentence, got == wanted, f"got {got!r}, wanted {wanted!r}")


def done():
    """The last line, and the end."""
    stop_all()
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    sys.exit(1 if failed else 0)


def cut_short(kind, fault, trace):
    """What Python does with an error that nobody caught: it counts."""
    global failed
    traceback.print_exception(kind, fault, trace)
    failed += 1
    print(f"FAILED: the check was cut short\n{passed} passed, {failed} failed", flush=True)


sys.excepthook = cut_short


def need(programs=(), headers=()):
    """Ends the check, counted, if a part is missing. Both are (what, Debian package) pairs."""
    for what, package in programs:
        if not shutil.which(what) and not os.path.exists("/usr/sbin/" + what):
            missing(what, package)
    for what, package in headers:
        probe = subprocess.run(["cc", "-E", "-"], input=f"#include <{what}>\n", text=True, capture_output=True)
        if probe.returncode:
            missing(f"<{what}>", package)


def missing(what, package):
    global skipped
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    text = f"{name}: {what} is missing (package {package}; make deps installs it)"
    if os.environ.get("SKIP_MISSING"):
        print(f"skipped: {text}")
        skipped += 1
    else:
        check(text, False)
    done()


def head_lines(source, word):
    """What the lines 'word: ...' of the comment at a source's head say, joined."""
    with open(os.path.join(ROOT, source), encoding="utf-8") as file:
        head = re.split(r"\*/", file.read(), maxsplit=1)[0]
    head = re.sub(r"[ \t]*\\\n[ */#]*", " ", head)
    return " ".join(re.findall(rf"^[ */#]*{word}: +(.*?)\s*$", head, re.M))


def check_packages(source):
    """make deps must install what a source's comment names."""
    with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as file:
        installed = re.sub(r"\\\n", " ", file.read())
    for package in head_lines(source, "Package").split():
        check(f"make deps installs {package}, which {source} names",
              re.search(rf"^[A-Z_]*PACKAGES *[+:]?=.*(?<![\w.+-]){re.escape(package)}(?![\w.+-])", installed, re.M))


def build(source, *flags, out=None, sanitized=True):
    """Builds a C program by the Build line of the source's comment, with warnings as errors, sanitized unless told not
    to; flags are added. The program's path. Ends the check if that fails: there is nothing to look at then."""
    os.makedirs(BUILD, exist_ok=True)
    check_packages(source)
    command = head_lines(source, "Build")
    if not check(f"{source} says how to build it (Build: ...)", command):
        done()
    words = [file for word in shlex.split(command)
             for file in (sorted(glob.glob(word, root_dir=ROOT)) if "*" in word else [word])]
    if "-o" not in words:
        check(f"the Build line of {source} names its output", False, command)
        done()
    at = words.index("-o") + 1
    out = os.path.join(BUILD, out or os.path.basename(words[at]))
    words[at] = out
    if words[0] == "cc":
        words[0] = os.environ.get("CC", "cc")
    words[1:1] = WARNINGS + WARNINGS_C + (SANITIZERS if sanitized else [])
    run = subprocess.run(words + list(flags), cwd=ROOT, text=True, capture_output=True)
    if not check(f"{source} builds as its comment says, without a warning", run.returncode == 0,
                 "\n" + run.stderr[:4000]):
        done()
    return out


def free_port():
    """Below those that systems give to connections: one of these would take it before the program listens."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def start(*command, port=None, unix=None):
    """Starts a program, which ends with the check at the latest; waits until it listens if a port (or a Unix socket's
    path) is given. Its output goes to a file, in .log."""
    path = os.path.join(folder, f"log{len(children)}")
    with open(path, "wb") as file:
        child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=file,
                                 stderr=subprocess.STDOUT)
    child.log = path
    children.append(child)
    end = time.monotonic() + 20
    while port or unix:
        try:
            with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as s:
                s.settimeout(1)
                s.connect(unix or ("127.0.0.1", port))
                break
        except OSError:
            if child.poll() is not None or time.monotonic() > end:
                check(f"{command[0]} starts and listens", False, said(child))
                done()
            time.sleep(0.02)
    return child


def said(child):
    with open(child.log, encoding="utf-8", errors="replace") as file:
        return file.read()


def wait_until(condition, seconds=20):
    """True as soon as condition() is, false after so long."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def stop(child, how=signal.SIGTERM, seconds=20):
    """Ends it; its exit code (negative: the signal)."""
    if child.poll() is None:
        child.send_signal(signal.SIGCONT)
        child.send_signal(how)
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return None


@atexit.register
def stop_all():
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait()
    shutil.rmtree(folder, ignore_errors=True)


def redis(*options):
    """A redis-server of its own; (child, port)."""
    port = free_port()
    child = start("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                  "--dir", folder, *options, port=port)
    return child, port


def http(port, path="/", headers=(), method="GET", body=None):
    """One request on a connection of its own: (status, fields with lower-case names, body)."""
    import http.client
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path)
    for name, value in headers:
        connection.putheader(name, value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    result = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return result


COUNT = """
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() ok, refused, other, wrong = 0, 0, 0, 0 end
function response(status, headers)
    local again = headers["Retry-After"]
    if not headers["RateLimit"] or not headers["X-RateLimit-Remaining"] then wrong = wrong + 1 end
    if status == 200 then
        ok = ok + 1
        if again then wrong = wrong + 1 end
    elseif status == 429 then
        refused = refused + 1
        if not again or tonumber(again) < 1 then wrong = wrong + 1 end
    else
        other = other + 1
    end
end
function done()
    local sum = {ok = 0, refused = 0, other = 0, wrong = 0}
    for _, thread in ipairs(threads) do
        for name in pairs(sum) do sum[name] = sum[name] + thread:get(name) end
    end
    io.write(string.format("counted %d %d %d %d\\n", sum.ok, sum.refused, sum.other, sum.wrong))
end
"""


def wrk(port, *words, seconds=1, path="/"):
    """wrk on a server that is limited: 200s, 429s, other statuses, answers whose fields are wrong."""
    script = os.path.join(folder, "count.lua")
    with open(script, "w", encoding="utf-8") as file:
        file.write(COUNT)
    text = subprocess.run(["wrk", "-t2", "-c8", f"-d{seconds}s", "-s", script, *words,
                           f"http://127.0.0.1:{port}{path}"], text=True, capture_output=True).stdout
    counted = re.search(r"counted (\d+) (\d+) (\d+) (\d+)", text)
    check("wrk measures without socket errors", counted and "Socket errors" not in text, text)
    return tuple(int(n) for n in counted.groups()) if counted else (0, 0, 0, 0)
