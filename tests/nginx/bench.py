"""make bench-nginx: the module beside limit_req, in one nginx, in one run: requests a second, memory of a key, tokens that
pass beyond a limit while made-up keys flood the zone. SECONDS: of each measurement."""
import os
import socket
import threading
import time

import server
from example import done

SECONDS = int(os.environ.get("SECONDS", 1))
ROUNDS = 5
ZONE_MB = 1
HEAD = "access_log off; error_log error.log crit; limit_req_log_level info; ratelimit_log_level info;"


def start(http, places):
    return server.Nginx(HEAD + http, places, module=MODULE, workers=1).start()


MODULE = server.build("nginx")

# ---- requests a second

ANY_KEY = 'function request() return wrk.format("GET", wrk.path .. "?k=" .. math.random(1, 10000)) end'


def places(name, limits):
    return f"location = /{name} {{ {limits} empty_gif; }} "


nginx = start(
    "limit_req_zone $arg_k zone=a:10m rate=1000000r/s; limit_req_zone $arg_k zone=b:10m rate=1r/m;"
    "ratelimit_zone $arg_k zone=c:10m rate=1000000r/s; ratelimit_zone $arg_k zone=d:10m rate=1r/m;"
    "ratelimit_zone $arg_k zone=e:10m 'limit=1000000/s';",
    places("free", "") +
    places("limit_req", "limit_req zone=a burst=1000000 nodelay;") +
    places("limit_req_refused", "limit_req zone=b; limit_req_status 429;") +
    places("ratelimit", "ratelimit zone=c burst=1000000 nodelay; ratelimit_fields off;") +
    places("ratelimit_refused", "ratelimit zone=d; ratelimit_fields off;") +
    places("ratelimit_fields", "ratelimit zone=c burst=1000000 nodelay;") +
    places("ratelimit_two", "ratelimit zone=c burst=1000000 nodelay; ratelimit zone=e; ratelimit_fields off;"))
ROWS = [("free", "no limit", "?k=1", ""),
        ("limit_req", "limit_req, one key", "?k=1", ""), ("ratelimit", "ratelimit, one key", "?k=1", ""),
        ("limit_req", "limit_req, 10,000 keys", "", ANY_KEY), ("ratelimit", "ratelimit, 10,000 keys", "", ANY_KEY),
        ("free", "no limit, the same requests", "", ANY_KEY),
        ("limit_req_refused", "limit_req, refused", "?k=1", ""), ("ratelimit_refused", "ratelimit, refused", "?k=1", ""),
        ("ratelimit_fields", "ratelimit, with fields for clients", "?k=1", ""),
        ("ratelimit_two", "ratelimit, two zones", "?k=1", "")]


def worker_seconds(nginx):
    """Of processor time, so far."""
    with open(f"/proc/{nginx.workers()[0]}/stat", encoding="utf-8") as file:
        return sum(int(word) for word in file.read().rsplit(")", 1)[1].split()[11:13]) / os.sysconf("SC_CLK_TCK")


speeds, costs = [[] for _ in ROWS], [[] for _ in ROWS]
for _ in range(ROUNDS):
    for speed, cost, (place, _, query, script) in zip(speeds, costs, ROWS):
        before = worker_seconds(nginx)
        *counts, a_second = server.load(nginx.port, f"/{place}{query}", SECONDS, 32, script)
        speed.append(a_second)
        cost.append((worker_seconds(nginx) - before) / max(1, sum(counts)) * 1e6)
print(f"requests a second, and the worker's processor time for each; one worker, the best of {ROUNDS} runs of {SECONDS} s")
print(f"{'':38}{'a second':>10}{'us each':>10}{'of no limit':>13}")
for speed, cost, (_, what, _, script) in zip(speeds, costs, ROWS):
    print(f"  {what:36}{max(speed):10,}{min(cost):10.2f}{min(cost) / min(costs[5 if script else 0]):13.2f}")
nginx.end()

# ---- memory of a key


def passes(nginx, path, keys):
    """Asks once under each key, many at a time on one connection; which passed."""
    passed = []
    keys = list(keys)
    with socket.create_connection(("127.0.0.1", nginx.port)) as s:
        for begin in range(0, len(keys), 200):
            part = keys[begin:begin + 200]
            s.sendall(b"".join(b"HEAD /%s?k=%s HTTP/1.1\r\nHost: x\r\n\r\n" % (path.encode(), key.encode()) for key in part))
            got = b""
            while got.count(b"\r\n\r\n") < len(part):
                got += s.recv(65536)
            passed += [answer.startswith(b"HTTP/1.1 200") for answer in got.split(b"\r\n\r\n")[:-1]]
    return passed


print(f"\nmemory of a key, of zones of {ZONE_MB} MB under a limit that every key has used up")
for what, form in (("4 bytes, as $binary_remote_addr", "%04x"), ("16 bytes", "%016x"), ("36 bytes, as a UUID", "%036x")):
    for name in ("limit_req", "ratelimit"):
        nginx = start(f"limit_req_zone $arg_k zone=a:{ZONE_MB}m rate=1r/m; ratelimit_zone $arg_k zone=b:{ZONE_MB}m rate=1r/m;",
                      places("limit_req", "limit_req zone=a; limit_req_status 429;") + places("ratelimit", "ratelimit zone=b;") +
                      "location = /metrics { ratelimit_metrics; }")
        keys = [form % i for i in range(60000)]
        new = passes(nginx, name, keys).count(True)
        if name == "limit_req":  # the newest keys are there, older ones are forgotten
            held = passes(nginx, name, reversed(keys)).index(True)
        else:
            held = nginx.metrics()['ratelimit_table_keys{zone="b"}']
        print(f"  {what:36}{name:10}{held:8,} keys, {ZONE_MB * 1048576 / held:6.1f} bytes each; of 60,000 new keys {new:6,} pass")
        nginx.end()

# ---- a key that others push out

LASTS = 5 * SECONDS
print(f"\na key that asks 10 times a second under 60r/m burst=4 nodelay, while others flood a zone of 256 KB for {LASTS} s")
FLOOD = 'function request() return wrk.format("GET", wrk.path .. "?k=f" .. math.random(1, 1000000000)) end'
for name in ("limit_req", "ratelimit"):
    nginx = start("limit_req_zone $arg_k zone=a:256k rate=60r/m; ratelimit_zone $arg_k zone=b:256k rate=60r/m;",
                  places("limit_req", "limit_req zone=a burst=4 nodelay; limit_req_status 429;") +
                  places("ratelimit", "ratelimit zone=b burst=4 nodelay;"))
    flood = []
    thread = threading.Thread(target=lambda: flood.append(server.load(nginx.port, f"/{name}", LASTS, 32, FLOOD)))
    begin = time.monotonic()
    thread.start()
    asked = passed = 0
    while thread.is_alive():
        asked += 1
        passed += nginx.status(f"/{name}?k=heavy") == 200
        thread.join(0.1)
    due = 5 + int(time.monotonic() - begin)
    ok, refused, _, _ = flood[0]
    print(f"  {name:10}asked {asked:4}, passed {passed:4}, {due:2} are its due; of the others' {ok + refused:8,} requests {ok:8,} passed")
    nginx.end()
done()
