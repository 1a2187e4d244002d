"""Checks examples/rules_etcd.c on a real etcd: what a record means, live changes, broken records, failures of etcd."""
import base64
import http.server
import json
import os
import signal
import socket
import subprocess
import threading

import example
from example import check, equal, wait_until

PROGRAM = "examples/rules_etcd.c"
SLOW = {"rate": 5, "capacity": 20, "window": "1h"}  # nothing comes back during a check


class Etcd:
    """A server of its own, which can be stopped and started again."""

    def __init__(self):
        self.port, self.peers = example.free_port(), example.free_port()
        self.data = os.path.join(example.folder, "etcd")
        self.start()

    def start(self):
        url, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peers}"
        self.child = example.start(
            "etcd", "--data-dir", self.data, "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
            "--initial-cluster", f"default={peers}", port=self.port)
        check("etcd answers", wait_until(lambda: self.ask("/v3/kv/range", {"key": encode(b"x")})[0] == 200))

    def ask(self, path, body):
        try:
            status, _, answer = example.http(self.port, path, method="POST", body=json.dumps(body).encode())
        except OSError:
            return 0, {}
        return status, json.loads(answer)

    def put(self, name, value, env="dev"):
        return self.put_all({name: value}, env)

    def put_all(self, values, env="dev"):
        """All in one revision, which is returned."""
        puts = [{"requestPut": {"key": encode(key(name, env)), "value": encode(as_bytes(value))}}
                for name, value in values.items()]
        return int(self.ask("/v3/kv/txn", {"success": puts})[1]["header"]["revision"])

    def delete(self, name, env="dev"):
        return int(self.ask("/v3/kv/deleterange", {"key": encode(key(name, env))})[1]["header"]["revision"])

    def ctl(self, *words):
        return subprocess.run(["etcdctl", "--endpoints", f"http://127.0.0.1:{self.port}", *words], text=True,
                              capture_output=True, timeout=20, env={**os.environ, "ETCDCTL_API": "3"})


class Proxy:
    """Between the program and etcd: can refuse connections, drop them, and hold back a watch."""

    def __init__(self, port):
        self.to, self.refuse, self.open = port, False, set()
        self.watch = threading.Event()
        self.held = threading.Event()
        self.watch.set()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.socket.accept()[0]
            if self.refuse:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.to))
            self.open |= {client, server}
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(one, other), daemon=True).start()

    def pump(self, one, other):
        try:
            while data := one.recv(65536):
                if b"POST /v3/watch" in data and not self.watch.is_set():
                    self.held.set()
                    self.watch.wait(20)
                other.sendall(data)
        except OSError:
            pass
        self.close(one, other)

    def close(self, *sockets):
        for one in sockets:
            self.open.discard(one)
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def drop(self):
        self.close(*list(self.open))


class Program:
    """rules_etcd reading lines: a question, an answer."""

    def __init__(self, path, port, *options, env="dev"):
        log = os.path.join(example.folder, f"lines{len(example.children)}")
        with open(log, "wb") as errors:
            self.child = subprocess.Popen(
                [path, "--etcd", f"http://127.0.0.1:{port}", "--env", env, "--service", "api", *options],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.child.log = log
        self.patience = 20
        example.children.append(self.child)

    def ask(self, resource):
        self.child.stdin.write(resource + "\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().rstrip("\n")

    def says(self, text):
        """Waits for it; not as long if it failed to say something before."""
        said = wait_until(lambda: text in example.said(self.child), self.patience)
        self.patience = 20 if said else 1
        return said

    def took_over(self, revision, rules):
        check(f"{rules} rules of revision {revision} are taken over", self.says(f"revision {revision}: {rules} rules"),
              example.said(self.child))

    def end(self):
        """What it prints at the end of its input."""
        out = self.child.communicate(timeout=20)[0]
        equal("it ends in order", self.child.returncode, 0)
        return out.splitlines()


def key(name, env="dev"):
    return f"/config/{env}/api/ratelimit/".encode() + (name if isinstance(name, bytes) else name.encode())


def as_bytes(value):
    return value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()


def encode(data):
    return base64.b64encode(data).decode()


def once(path, port, env="dev", *options):
    run = subprocess.run([path, "--etcd", f"http://127.0.0.1:{port}", "--env", env, "--service", "api", "--once",
                          *options], text=True, capture_output=True, timeout=60)
    head, *rules = run.stdout.splitlines() or [""]
    check("rules begin with where they are from", head.startswith(f"# /config/{env}/api/ratelimit/ at revision ")
          or run.returncode == 3, head)
    return run.returncode, rules, run.stderr


def wrong_usage(path):
    for words in ([], ["--env", "dev"], ["--env", "", "--service", "api"], ["--env", "a/b", "--service", "api"],
                  ["--env", "dev", "--service"], ["--env", "d" * 300, "--service", "api"],
                  ["--env", "dev", "--service", "api", "--default", "10/sec"],
                  ["--env", "dev", "--service", "api", "--load", "0", "1", "x"],
                  ["--env", "dev", "--service", "api", "--load", "1", "1x", "x"],
                  ["--env", "dev", "--service", "api", "--load", "1", "1"], ["--unknown"]):
        run = subprocess.run([path, *words], text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=20)
        check(f"wrong usage {words} exits with 2 and a text", run.returncode == 2 and "rules_etcd: " in run.stderr,
              (run.returncode, run.stderr))
    equal("--help exits with 0", subprocess.run([path, "--help"], capture_output=True, timeout=20).returncode, 0)


GOOD = [
    ('{"rate":10.0,"capacity":20,"burst":5,"window":"1s","description":"x"}', "10/s burst 20"),
    ('{"rate":10.0,"capacity":20,"burst":5,"window":"1s","description":"{\\"rate\\":7,[}"}', "10/s burst 20"),
    ('{"description":"\\\\","capacity":20 , "rate" : 10.0}', "10/s burst 20"),
    ('{"description":"rate","rate":10,"capacity":20}', "10/s burst 20"),
    ('{"rate":0.1,"capacity":1}', "1/10s"), ('{"rate":0.1,"capacity":2,"window":"1m"}', "1/10m burst 2"),
    ('{"rate":16.7,"capacity":20,"window":"1s"}', "167/10s burst 20"),
    ('{"rate":1.00000000000000001,"capacity":1,"window":"1ns"}', "100000000000000001/100000000s burst 1"),
    ('{"rate":10,"capacity":10}', "10/s"),
    ('{"rate":10,"burst":50}', "10/s burst 50"),
    ('{"rate":10,"capacity":20,"burst":20}', "10/s burst 20"),
    ('{"rate":10,"capacity":20,"burst":0}', "10/s burst 20"),
    ('{"rate":1000,"capacity":9007199254740993,"window":"1us"}', "1000/us burst 9007199254740993"),
    (' \n{"rate":1,"capacity":2,"window":"1500ms"}\r\n', "1/1500ms burst 2"),
    ('{"rate":1,"capacity":2,"description":"ключ"}', "1/s burst 2"),
]
PLAIN = "is not a plain number above 0"
WHOLE = "is not a plain whole number above 0"
FITS = "is 0 or does not fit"
PERIOD = '"window" is not a period like 1s, 500ms or 1h'
BAD = [
    ("", "not a JSON text"), ("{", "not a JSON text"), ('{"rate":1,"capacity":2}x', "not a JSON text"),
    (b'{"rate":1,"capacity":2}\0', "a NUL in a text"), (b"\xff\xfe\x80", "not a JSON text"),
    ("[" * 5000, "not a JSON text"), ("[]", "not a JSON object"), ("10", "not a JSON object"),
    ("null", "not a JSON object"), ('"rate"', "not a JSON object"),
    ("{}", '"rate" is missing'), ('{"capacity":2}', '"rate" is missing'), ('{"rate":2}', '"capacity" is missing'),
    ('{"rate":"10","capacity":2}', '"rate" is not a number'), ('{"rate":null,"capacity":2}', '"rate" is not a number'),
    ('{"rate":true,"capacity":2}', '"rate" is not a number'), ('{"rate":[1],"capacity":2}', '"rate" is not a number'),
    ('{"rate":1,"capacity":"2"}', '"capacity" is not a number'), ('{"rate":1,"capacity":{}}', '"capacity" is not a number'),
    ('{"rate":1,"capacity":2,"burst":"2"}', '"burst" is not a number'),
    ('{"rate":1,"capacity":2,"window":1}', '"window" is not a text'),
    ('{"rate":1,"capacity":2,"description":1}', '"description" is not a text'),
    ('{"rate":1,"rate":2,"capacity":2}', '"rate" comes twice'),
    ('{"rate":1,"capasity":2}', '"capasity" is not part of a rule'),
    ('{"Rate":1,"capacity":2}', '"Rate" is not part of a rule'),
    ('{"rate":1,"capacity":2,"\\u001b[2J":1}', '"?[2J" is not part of a rule'),
    ('{"rate":0,"capacity":2}', f'"rate" {FITS}'), ('{"rate":0.0,"capacity":2}', f'"rate" {FITS}'),
    ('{"rate":-1,"capacity":2}', f'"rate" {PLAIN}'), ('{"rate":-0.0,"capacity":2}', f'"rate" {PLAIN}'),
    ('{"rate":1e3,"capacity":2}', f'"rate" {PLAIN}'), ('{"r\\u0061te":1,"capacity":2}', f'"rate" {PLAIN}'),
    ('{"rate":1e999,"capacity":2}', f'"rate" {PLAIN}'),
    ('{"rate":99999999999999999999,"capacity":2}', f'"rate" {FITS}'),
    ('{"rate":0.0000000000000000001,"capacity":2}', f'"rate" {FITS}'),
    ('{"rate":0.30000000000000004,"capacity":1,"window":"1h"}', f'"rate" {FITS}'),
    ('{"rate":1,"capacity":0}', f'"capacity" {FITS}'), ('{"rate":1,"capacity":-5}', f'"capacity" {WHOLE}'),
    ('{"rate":1,"capacity":2.5}', f'"capacity" {WHOLE}'), ('{"rate":1,"capacity":2.0}', f'"capacity" {WHOLE}'),
    ('{"rate":1,"capacity":1e2}', f'"capacity" {WHOLE}'),
    ('{"rate":1,"capacity":99999999999999999999}', f'"capacity" {FITS}'),
    ('{"rate":1,"capacity":4611686018427387904}', f'"capacity" {FITS}'),
    ('{"rate":1,"burst":0}', f'"burst" {FITS}'),
    ('{"rate":1,"capacity":20,"burst":21}', '"burst" is not a plain whole number up to "capacity"'),
    ('{"rate":1,"capacity":20,"burst":-1}', '"burst" is not a plain whole number up to "capacity"'),
    ('{"rate":1,"capacity":20,"burst":1.5}', '"burst" is not a plain whole number up to "capacity"'),
    ('{"rate":1,"capacity":2,"window":""}', PERIOD), ('{"rate":1,"capacity":2,"window":"1"}', PERIOD),
    ('{"rate":1,"capacity":2,"window":"0s"}', PERIOD), ('{"rate":1,"capacity":2,"window":"-1s"}', PERIOD),
    ('{"rate":1,"capacity":2,"window":"1 s"}', PERIOD), ('{"rate":1,"capacity":2,"window":"1m30s"}', PERIOD),
    ('{"rate":1,"capacity":2,"window":"minute"}', PERIOD), ('{"rate":1,"capacity":2,"window":"1s burst 9"}', PERIOD),
    ('{"rate":1,"capacity":2,"window":"9999999999999w"}', PERIOD), ('{"rate":1,"capacity":2,"window":"1s\\u0000"}', "a NUL in a text"),
    ('{"rate":1,"capacity":2,"window":"' + "1" * 1000 + 's"}', PERIOD),
]
NAMES = [(b"a b", False), (b"#a", False), (b"", False), (b"n" * 64, False), (b"a\n", False), (b"a\0b", False),
         (b"\xef\xbb\xbfx", False),
         (b"n" * 63, True), (b"login|root", True), (b"GET/users", True), (b"\xc3\xa4", True)]


def records(path, etcd):
    good = {f"good{i:03}": (value, limit) for i, (value, limit) in enumerate(GOOD)}
    bad = {f"bad{i:03}": (value, why) for i, (value, why) in enumerate(BAD)}
    etcd.put_all({name: value for name, (value, _) in {**good, **bad}.items()}, "records")
    etcd.put_all({name: SLOW for name, _ in NAMES}, "names")
    code, out, errors = once(path, etcd.port, "records")
    equal("--once exits with 1 if a record is broken", code, 1)
    for name, (value, limit) in good.items():
        check(f"{value} is the limit {limit}", f"{name} {limit}" in out, [line for line in out if name in line] or errors)
    equal("the broken ones are not among the rules", len(out), len(good))
    for name, (value, why) in bad.items():
        line = f"rules_etcd: {key(name, 'records').decode()}: refused: {why}; there is no such rule"
        check(f"{value[:60]!r} is refused with its key and why", line in errors.splitlines(),
              [line for line in errors.splitlines() if name in line])
    equal("one line for each broken record, and one for the rules", len(errors.splitlines()), len(bad) + 1)
    code, out, errors = once(path, etcd.port, "names")
    equal("names that are no rule's are refused", errors.count("the name of a rule is"),
          len([name for name, right in NAMES if not right]))
    check("what is not printable in a key is not printed", "ratelimit/a?:" in errors and "ratelimit/a?b:" in errors, errors)
    equal("the others are rules", sorted(line.rsplit(" ", 3)[0].encode() for line in out),
          sorted(name for name, right in NAMES if right))


def many(path, etcd):
    for start in range(0, 1030, 103):
        etcd.put_all({f"r{i:04}": SLOW for i in range(start, start + 103)}, "many")
    code, out, errors = once(path, etcd.port, "many")
    equal("1024 rules of 1030 are loaded", (code, len(out)), (1, 1024))
    check("that there are more is said", "r1024: refused: more rules than there is room for" in errors, errors)
    for i in range(9):
        etcd.put(f"huge{i}", b" " * 1400000, "huge")
    code, out, errors = once(path, etcd.port, "huge")
    check("an answer of 16 MiB is not taken", code == 3 and "an answer that is too long" in errors, (code, errors[-500:]))


def others(path):
    """A server that is not etcd, and none."""
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(404 if self.path.startswith("/nothing") else 200)
            self.end_headers()
            self.wfile.write(b"hello\x1b[2J")

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code, _, errors = once(path, server.server_port)
    check("a server that is not etcd is reported", code == 3 and "not an answer of etcd" in errors, errors)
    code, _, errors = once(path, f"{server.server_port}/nothing")
    check("and so is what it answers", code == 3 and "HTTP status 404: hello?[2J" in errors, errors)
    server.shutdown()
    code, _, errors = once(path, example.free_port())
    check("--once exits with 3 if nobody answers", code == 3 and "connect" in errors, errors)


def live(path, etcd):
    program = Program(path, etcd.port)
    check("it starts with no rules at all", program.says(": 0 rules"), example.said(program.child))
    equal("what no rule matches is refused", program.ask("login|ann"), "refused login|ann: no rule")
    equal("etcdctl's own put", etcd.ctl("put", key("login").decode(), json.dumps(SLOW)).stdout, "OK\n")
    check("is seen", program.says(": 1 rules"), example.said(program.child))
    answers = [program.ask("login|ann") for _ in range(15)]
    equal("15 of 20 tokens are taken", answers[-1], "allowed login|ann by login, 5 of 20 left")

    program.took_over(etcd.put("login", {"rate": 7.5, "capacity": 20, "window": "1h"}), 1)
    equal("they stay spent when the rate changes", program.ask("login|ann"), "allowed login|ann by login, 4 of 20 left")
    program.took_over(etcd.put("login", {"rate": 7.5, "capacity": 30, "window": "1h"}), 1)
    equal("and when the bucket grows", program.ask("login|ann"), "allowed login|ann by login, 13 of 30 left")
    equal("another key has its own", program.ask("login|bob"), "allowed login|bob by login, 29 of 30 left")

    for value, why in BAD[2:40:4]:
        revision = etcd.put("login", value)
        check(f"a live change to {value!r} is refused", program.says(f"refused: {why}; the rule stays 15/2h burst 30"),
              example.said(program.child))
        program.took_over(revision, 1)
    equal("the old rule stays", program.ask("login|ann"), "allowed login|ann by login, 12 of 30 left")
    program.took_over(etcd.put("other", SLOW), 2)
    equal("beside a broken record others change", program.ask("other"), "allowed other by other, 19 of 20 left")
    equal("--once on the same records knows no old rule", once(path, etcd.port)[1], ["other 5/h burst 20"])

    program.took_over(etcd.delete("login"), 1)
    equal("a rule that is deleted is gone", program.ask("login|ann"), "refused login|ann: no rule")
    program.took_over(etcd.put("login", {"rate": 7.5, "capacity": 30, "window": "1h"}), 2)
    equal("and its tokens stay spent until it is back", program.ask("login|ann"),
          "allowed login|ann by login, 11 of 30 left")
    program.took_over(etcd.put("default", {"rate": 1, "capacity": 1, "window": "1h"}), 3)
    equal("default is for all others", program.ask("x"), "allowed x by default, 0 of 1 left")
    check("and refuses them", program.ask("x").startswith("refused x by default, again in "))
    check("a long key is decided as any other", program.ask("y" * 600).endswith(" by default, 0 of 1 left"))
    end = program.end()
    check("counters at the end", "rule other, 5/h burst 20: allowed 1, refused 0" in end, end)


def defaults(path, etcd):
    program = Program(path, example.free_port(), "--default", "3/h")
    equal("before etcd has answered, --default decides", [program.ask("a")[:26] for _ in range(4)],
          ["allowed a by default, 2 of", "allowed a by default, 1 of", "allowed a by default, 0 of",
           "refused a by default, agai"])
    check("which is said", "no rules from etcd yet" in example.said(program.child), example.said(program.child))
    program.end()
    etcd.put("default", SLOW, "defaults")
    program = Program(path, etcd.port, "--default", "3/h", env="defaults")
    check("the record default comes before it", program.says(": 1 rules") and
          program.ask("a") == "allowed a by default, 19 of 20 left")
    program.end()


def under_load(path, etcd):
    etcd.put("login", SLOW, "load")
    child = example.start(path, "--etcd", f"http://127.0.0.1:{etcd.port}", "--env", "load", "--service", "api",
                          "--load", 3, 2, "login|ann")
    check("the rule is there", wait_until(lambda: ": 1 rules" in example.said(child)), example.said(child))
    changes = 0
    while child.poll() is None:
        for value in ({**SLOW, "rate": 6}, {**SLOW, "rate": 0}, SLOW):
            etcd.put("login", value, "load")
            changes += 1
    said = example.said(child)
    check("rules are replaced while threads decide", said.count("revision ") > 3 and said.count("refused: ") > 1,
          (changes, said[-300:]))
    check("the threads got the 20 tokens of the bucket between them and no error",
          "\n3 threads: allowed 20, refused " in said and ", failed 0\n" in said, said[-300:])
    equal("the load ends in order", example.stop(child), 0)


def failures(path, etcd):
    proxy = Proxy(etcd.port)
    etcd.put_all({"login": SLOW, "gone": SLOW}, "failures")
    program = Program(path, proxy.port, env="failures")
    check("rules come through a proxy", program.says(": 2 rules"))
    for _ in range(3):
        program.ask("login|ann")

    proxy.refuse = True
    proxy.drop()
    check("a lost connection is reported", program.says("the rules stay as they are"), example.said(program.child))
    equal("the rules stay", program.ask("login|ann"), "allowed login|ann by login, 16 of 20 left")
    etcd.delete("gone", "failures")
    revision = etcd.put("login", {**SLOW, "capacity": 40}, "failures")
    proxy.refuse = False
    program.took_over(revision, 1)
    equal("a change that was missed is seen", program.ask("login|ann"), "allowed login|ann by login, 35 of 40 left")
    equal("and so is what was deleted", program.ask("gone"), "refused gone: no rule")

    proxy.watch.clear()
    proxy.drop()
    check("the next watch is held back", proxy.held.wait(20))
    for capacity in (41, 42, 50):
        revision = etcd.put("login", {**SLOW, "capacity": capacity}, "failures")
    equal("etcd compacts", etcd.ctl("compact", str(revision)).returncode, 0)
    proxy.watch.set()
    check("a watch from before that is told so", program.says("etcd has compacted what came next"),
          example.said(program.child))
    program.took_over(revision, 1)
    equal("and all is read again", program.ask("login|ann"), "allowed login|ann by login, 44 of 50 left")

    example.stop(etcd.child)
    equal("etcd is away, the rules stay", program.ask("login|ann"), "allowed login|ann by login, 43 of 50 left")
    etcd.start()
    program.took_over(etcd.put("login", SLOW, "failures"), 1)
    equal("after its restart changes are seen", program.ask("login|ann"), "allowed login|ann by login, 12 of 20 left")
    etcd.child.send_signal(signal.SIGSTOP)
    equal("etcd hangs, the rules stay", program.ask("login|ann"), "allowed login|ann by login, 11 of 20 left")
    program.end()
    etcd.child.send_signal(signal.SIGCONT)


def main():
    example.need(programs=[("etcd", "etcd-server"), ("etcdctl", "etcd-client")],
                 headers=[("curl/curl.h", "libcurl4-openssl-dev"), ("cjson/cJSON.h", "libcjson-dev")])
    path = example.build(PROGRAM)
    wrong_usage(path)
    others(path)
    etcd = Etcd()
    live(path, etcd)
    records(path, etcd)
    many(path, etcd)
    defaults(path, etcd)
    under_load(path, etcd)
    failures(path, etcd)
    example.done()


if __name__ == "__main__":
    main()
