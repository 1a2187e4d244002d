"""An nginx of the package with the module in it, for the checks and the numbers: built by the module's own comment, and
started in a folder of its own."""
import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples"))
import example
from example import (BUILD, ROOT, WARNINGS, WARNINGS_C, check, check_packages, done, equal, folder, free_port, head_lines,
                     need, said, start, stop, wait_until)

need(programs=[("nginx", "nginx"), ("curl", "curl"), ("wrk", "wrk"), ("valgrind", "valgrind")])
if not os.path.exists("/usr/share/nginx/src/conf_flags"):
    example.missing("/usr/share/nginx/src", "nginx-dev")

SOURCE = "examples/nginx/module.c"
check_packages(SOURCE)


def build(out, *flags):
    words = head_lines(SOURCE, "Build").split()
    equal("the Build line is the script and a folder", words[:2], ["bash", "examples/nginx/build.sh"])
    out = os.path.join(BUILD, out)
    subprocess.run(["rm", "-rf", out], check=True)
    run = subprocess.run(words[:2] + [out], cwd=ROOT, text=True, capture_output=True,
                         env={**os.environ, "CFLAGS": " ".join([*WARNINGS, "-Wswitch-enum", *WARNINGS_C, *flags])})
    if not check("the module builds as its comment says, without a warning", run.returncode == 0,
                 "\n" + run.stderr[:4000]):
        done()
    return os.path.join(out, "ngx_http_ratelimit_module.so")


SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# An unmodified nginx does not bring what a sanitized module needs: it is loaded before.
PRELOAD = " ".join(subprocess.run(["gcc", f"-print-file-name={name}"], text=True, capture_output=True).stdout.strip()
                   for name in ("libasan.so", "libubsan.so"))

# ---- an nginx in a folder of its own

FRAME = """
load_module %(module)s;
daemon off;
user root;
pid nginx.pid;
error_log error.log info;
worker_processes %(workers)d;
worker_shutdown_timeout 20s;
%(main)s
events { worker_connections 512; }
http {
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    log_format seen '$uri $status $ratelimit_status $ratelimit_rule $ratelimit_remaining';
    access_log access.log seen;
    large_client_header_buffers 4 128k;
    keepalive_requests 1000000000;
    %(http)s
    server {
        listen 127.0.0.1:%(port)d %(listen)s;
        %(server)s
    }
}
"""
servers = []


class Nginx:
    """http: what stands in http { }; server: what stands in its one server { }. All files are there: GET /NAME has
    NAME as its body."""

    def __init__(self, http="", server="", *, module, workers=2, main="", wrapper=(), listen=""):
        self.folder = os.path.join(folder, f"nginx{len(servers)}")
        self.port = free_port()
        self.fixed = {"port": self.port, "listen": listen, "workers": workers, "main": main, "module": module}
        os.makedirs(os.path.join(self.folder, "html"))
        self.write(http, server)
        self.environ = {"LD_PRELOAD": PRELOAD, "ASAN_OPTIONS": "detect_leaks=0"} if "sanitized" in module else {}
        self.wrapper = [*wrapper]
        servers.append(self)

    def write(self, http, server):
        with open(os.path.join(self.folder, "nginx.conf"), "w", encoding="utf-8") as file:
            file.write(FRAME % {**self.fixed, "http": http, "server": server})

    def path(self, name):
        return os.path.join(self.folder, name)

    def file(self, name, text):
        """Puts a file there in one step, also in place of another."""
        with open(self.path(name) + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(self.path(name) + ".new", self.path(name))

    def command(self, *words):
        return [*self.wrapper, "/usr/sbin/nginx", "-p", self.folder + "/", "-c", "nginx.conf", "-e", "error.log", *words]

    def test(self):
        """nginx -t: (exit code, what it says)."""
        run = subprocess.run(self.command("-t"), text=True, capture_output=True, env={**os.environ, **self.environ})
        return run.returncode, run.stderr

    def start(self, *files):
        for name in files:
            with open(self.path(os.path.join("html", name)), "w", encoding="utf-8") as file:
                file.write(name)
        environ = [f"{name}={value}" for name, value in self.environ.items()]
        self.child = start("env", *environ, *self.command(), port=self.port)
        self.child.kill = self.kill
        if "master_process off" not in self.fixed["main"]:  # it listens before it has its workers
            check("nginx has its workers", wait_until(lambda: len(self.workers()) == self.fixed["workers"], 60), said(self.child))
        return self

    def kill(self):
        """Workers go on if only their master is killed."""
        for pid in [*self.workers(), self.child.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def get(self, path="/", headers=(), connection=None):
        """(status, fields, body)."""
        c = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("GET", path, headers=dict(headers))
        answer = c.getresponse()
        body = answer.read()
        if not connection:
            c.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body

    def status(self, path="/", headers=()):
        return self.get(path, headers)[0]

    def statuses(self, path, count, headers=()):
        return [self.status(path, headers) for _ in range(count)]

    def at_once(self, path, count, headers=()):
        """As many requests side by side: [(status, seconds)], by seconds."""
        result = []

        def ask():
            begin = time.monotonic()
            result.append((self.status(path, headers), time.monotonic() - begin))

        threads = [threading.Thread(target=ask) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(result, key=lambda x: x[1])

    def log(self, name="error.log"):
        with open(self.path(name), encoding="utf-8", errors="replace") as file:
            return file.read()

    def logged(self, line, count=1):
        """Whether the access log has the line exactly so many times; nginx writes it after it has answered."""
        return wait_until(lambda: self.log("access.log").splitlines().count(line) == count)

    def workers(self):
        """The workers' process ids."""
        with open(f"/proc/{self.child.pid}/task/{self.child.pid}/children", encoding="utf-8") as file:
            return [int(pid) for pid in file.read().split()]

    def reload(self):
        """True when all workers are new."""
        before = set(self.workers())
        self.child.send_signal(signal.SIGHUP)
        return wait_until(lambda: self.workers() and not before & set(self.workers()), 60)

    def end(self, complaints=0):
        """Ends it, and looks whether anything crashed: nothing may be said that is serious, but for so many lines."""
        equal("nginx ends cleanly", stop(self.child, signal.SIGQUIT, 60), 0)
        serious = re.findall(r".*(?:\[(?:alert|emerg|crit)\]|anitizer|runtime error).*", self.log() + said(self.child))
        check("no worker crashed, nothing was out of bounds, nginx complained of nothing", len(serious) <= complaints, serious[:5])

    def metrics(self, path="/metrics"):
        """The page, as {sample: number}."""
        _, fields, body = self.get(path)
        equal("metrics are in Prometheus' text", fields.get("content-type"), "text/plain; version=0.0.4")
        lines = body.decode().splitlines()
        kinds = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        equal("each family is there once", kinds, sorted(set(kinds), key=kinds.index))
        samples = {}
        for line in lines:
            if not line.startswith("#"):
                match = re.fullmatch(r'([a-z_]+\{(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+\}) (\d+)', line)
                if check("a line of the metrics is a sample", match, line):
                    samples[match[1]] = int(match[2])
        return samples


COUNT = """
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() ok, refused, other = 0, 0, 0 end
function response(status)
    if status == 200 then ok = ok + 1 elseif status == 429 or status == 503 then refused = refused + 1 else other = other + 1 end
end
function done(summary, latency)
    local sum = {ok = 0, refused = 0, other = 0}
    for _, thread in ipairs(threads) do
        for name in pairs(sum) do sum[name] = sum[name] + thread:get(name) end
    end
    io.write(string.format("counted %d %d %d %d\\n", sum.ok, sum.refused, sum.other, summary.requests / summary.duration * 1e6))
end
"""


def load(port, path, seconds, connections=8, script=""):
    """wrk, which nginx may cut off: (200s, refusals, other answers, answers a second)."""
    name = os.path.join(folder, f"load{time.monotonic_ns()}.lua")
    with open(name, "w", encoding="utf-8") as file:
        file.write(COUNT + script)
    text = subprocess.run(["wrk", "-t2", f"-c{connections}", f"-d{seconds}s", "-s", name, f"http://127.0.0.1:{port}{path}"],
                          text=True, capture_output=True).stdout
    counted = re.search(r"counted (\d+) (\d+) (\d+) (\d+)", text)
    check("wrk measures", counted, text)
    return tuple(int(n) for n in counted.groups()) if counted else (0, 0, 0, 0)


def under_valgrind(http, server, module):
    """One process, not yet started."""
    log = os.path.join(folder, "valgrind.log")
    return Nginx(http, server, module=module, workers=1, main="master_process off;",
                 wrapper=["valgrind", "--leak-check=full", "--show-leak-kinds=definite,possible", f"--log-file={log}"])


def check_valgrind(nginx):
    """Ends it. That valgrind has found nothing, but for what nginx itself frees at no time."""
    equal("nginx under valgrind ends", stop(nginx.child, signal.SIGQUIT, 60), 0)
    with open(os.path.join(folder, "valgrind.log"), encoding="utf-8") as file:
        text = re.sub(r"^==\d+== ?", "", file.read(), flags=re.M)
    # The last one: its events and connections, to which only pointers into their middle may be left.
    own = r"ngx_set_environment|ngx_crc32_table_init|ngx_alloc [^\n]*\n[^\n]*\?\?\? \(in /usr/sbin/nginx\)\n[^\n]*ngx_single_process_cycle "
    faults = [part for part in re.split(r"\n\n+", text) if re.search(r"^\s+at 0x", part, re.M) and not re.search(own, part)]
    check("valgrind has nothing to say of the module", "ERROR SUMMARY" in text and not faults, "\n".join(faults)[:3000])
