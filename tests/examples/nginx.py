"""The nginx module, loaded by the nginx of the package: what clients, the log and the operator see."""
import collections
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "nginx"))
import server
from example import check, done, equal, stop, wait_until, wrk

PLAIN = server.build("nginx")
Nginx = functools.partial(server.Nginx, module=server.build("nginx_sanitized", *server.SANITIZERS))

# ---- wrong configurations: each is refused, with what is wrong

HOLDS = "ratelimit_zone $arg_k zone=one:1m rate=1r/s; ratelimit_zone $arg_k zone=two:1m 'limit=1/s burst 2';" \
        "ratelimit_zone $arg_k zone=win:1m 'limit=5/m window'; ratelimit_zone $arg_k zone=three:1m;"
RULES = HOLDS + "ratelimit_rules rules;"
WRONG = [  # http, server, what it says
    ("ratelimit_zone $arg_k rate=1r/s;", "", '"zone=NAME:SIZE" is missing'),
    ("ratelimit_zone $arg_k zone=one rate=1r/s;", "", 'zone "one" is not NAME:SIZE'),
    ("ratelimit_zone $arg_k zone=:1m rate=1r/s;", "", 'zone ":1m" is not NAME:SIZE'),
    ("ratelimit_zone $arg_k zone=one:big rate=1r/s;", "", 'zone "one": "big" is no size'),
    ("ratelimit_zone $arg_k zone=one:40k rate=1r/s;", "", 'zone "one" is too small: it needs at least'),
    ("ratelimit_zone $arg_k zone=one:1m zone=two:1m rate=1r/s;", "", '"zone=two:1m" is unknown, or one too many'),
    (HOLDS + "ratelimit_zone $arg_k zone=one:1m rate=1r/s;", "", 'zone "one" is there already'),
    ("ratelimit_zone $arg_k zone=one:1m rate=1;", "", 'rate "1" is not a number'),
    ("ratelimit_zone $arg_k zone=one:1m rate=0r/s;", "", 'rate "0r/s" is not a number'),
    ("ratelimit_zone $arg_k zone=one:1m rate=-1r/s;", "", 'rate "-1r/s" is not a number'),
    ("ratelimit_zone $arg_k zone=one:1m rate=1r/h;", "", 'rate "1r/h" is not a number'),
    ("ratelimit_zone $arg_k zone=one:1m rate=1r/s rate=2r/s;", "", '"rate=2r/s" is unknown, or one too many'),
    ("ratelimit_zone $arg_k zone=one:1m limit=10;", "", "limit 10 is wrong at byte 3"),
    ("ratelimit_zone $arg_k zone=one:1m 'limit=10/s bust 3';", "", "limit 10/s bust 3 is wrong at byte 6"),
    ("ratelimit_zone $arg_k zone=one:1m limit=0/s;", "", "limit 0/s: the number at byte 1 is zero"),
    ('ratelimit_zone $arg_k zone=one:1m limit="10/s burst 3";', "", "with the quotes round the whole word"),
    ("ratelimit_zone $arg_k zone=one:1m rate=1r/s limit=1/s;", "", '"limit=1/s" is unknown, or one too many'),
    ("ratelimit_zone $arg_k zone=one:1m rate=1r/s ipv4=33;", "", '"33" is no prefix length from 1 to 32'),
    ("ratelimit_zone $arg_k zone=one:1m rate=1r/s ipv6=0;", "", '"0" is no prefix length from 1 to 128'),
    ("ratelimit_zone $arg_k zone=one:1m rate=1r/s ipv6=;", "", '"" is no prefix length'),
    ("ratelimit_zone $no_such_variable zone=one:1m rate=1r/s;", "", 'unknown "no_such_variable" variable'),
    ("ratelimit_zone $arg_k zone=one:1m fast;", "", '"fast" is unknown, or one too many'),
    ("ratelimit_zone $arg_k;", "", 'invalid number of arguments in "ratelimit_zone"'),
    ("", "ratelimit_zone $arg_k zone=one:1m rate=1r/s;", '"ratelimit_zone" directive is not allowed here'),
    ("", "ratelimit zone=one;", 'zone "one" is unknown: its ratelimit_zone comes first'),
    (HOLDS, "ratelimit burst=5;", '"zone=NAME" is missing'),
    (HOLDS, "ratelimit zone=one zone=two;", '"zone=two" is unknown, or one too many'),
    (HOLDS, "ratelimit zone=one burst=-1;", 'burst "-1" is no number'),
    (HOLDS, "ratelimit zone=one burst=many;", 'burst "many" is no number'),
    (HOLDS, "ratelimit zone=one delay=x;", 'delay "x" is no number'),
    (HOLDS, "ratelimit zone=one burst=5 nodelay delay=2;", '"nodelay" and "delay=" exclude each other'),
    (HOLDS, "ratelimit zone=one burst=5 nodelay=on;", '"nodelay=on" is unknown'),
    (HOLDS, "ratelimit zone=one; ratelimit zone=one burst=3;", 'zone "one" with this rule and key is here already'),
    (HOLDS, "ratelimit zone=one wait=1s;", 'wait, cost and charge need a limit= of zone "one"'),
    (HOLDS, "ratelimit zone=one cost=$arg_n;", 'wait, cost and charge need a limit= of zone "one"'),
    (HOLDS, "ratelimit zone=two burst=3;", 'burst, delay and nodelay need a rate= of zone "two"'),
    (HOLDS, "ratelimit zone=two nodelay;", 'burst, delay and nodelay need a rate= of zone "two"'),
    (HOLDS, "ratelimit zone=two wait=soon;", 'wait "soon" is no time'),
    (HOLDS, "ratelimit zone=two wait=0;", 'wait "0" is no time'),
    (HOLDS, "ratelimit zone=two wait=2d;", 'wait "2d" is no time up to a day'),
    (HOLDS, "ratelimit zone=two charge=$bytes_sent cost=$arg_n;", "charge= excludes cost= and wait="),
    (HOLDS, "ratelimit zone=two charge=$bytes_sent wait=1s;", "charge= excludes cost= and wait="),
    (HOLDS, "ratelimit zone=two cost=;", '"cost=" has no value'),
    (HOLDS, "ratelimit zone=two cost=$nothing_such;", 'unknown "nothing_such" variable'),
    (HOLDS, "ratelimit zone=two key=;", '"key=" has no value'),
    (HOLDS, "ratelimit zone=win wait=1s;", 'the limit of zone "win" is a window'),
    (HOLDS, "ratelimit zone=three;", 'zone "three" has no rate= or limit=: a rule= must be named'),
    (HOLDS, "ratelimit zone=three rule=login;", '"ratelimit_rules" is missing'),
    (HOLDS + "ratelimit_rules gone;", "", '/gone" cannot be opened'),
    (HOLDS + "ratelimit_rules html;", "", '/html" is no file'),
    (RULES + "ratelimit_rules rules;", "", '"ratelimit_rules" directive is there already'),
    (HOLDS + "ratelimit_rules rules most=0;", "", '"most=0" is not "most="'),
    (HOLDS + "ratelimit_rules rules check=1ms;", "", '"check=1ms" is not "most="'),
    (HOLDS + "ratelimit_rules rules often;", "", '"often" is not "most="'),
    (HOLDS + "ratelimit_rules rules most=1;", "", "line 2: more than most=1 rules"),
    (HOLDS + "ratelimit_rules faulty;", "", '/faulty", line 2, column 10:'),
    (RULES, "ratelimit zone=three rule=nobody;", 'there is no rule "nobody", which the configuration names'),
    ("", "ratelimit_status 200;", "value must be between 400 and 599"),
    ("", "ratelimit_status 42x;", 'invalid number'),
    ("", "ratelimit_dry_run yes;", 'it must be "on" or "off"'),
    ("", "ratelimit_log_level debug;", 'invalid value "debug"'),
    ("", "ratelimit_fields all;", 'invalid value "all"'),
    ("", "ratelimit_fields off draft;", 'ratelimit_fields: "off" excludes the other words'),
    ("", "location /m { ratelimit_metrics on; }", 'invalid number of arguments in "ratelimit_metrics"'),
    (HOLDS, "".join(f"ratelimit zone=one key=$arg_k{i};" for i in range(17)), "more than 16 limits in one place"),
]
nginx = Nginx()
nginx.file("rules", "login 5/m burst 2\nlogin|vip 50/m\n")
nginx.file("faulty", "login 5/m\nsearch 1/parsec\n")
for top, places, says in WRONG:
    nginx.write(top, places)
    code, text = nginx.test()
    check(f"nginx -t refuses {(places or top)!r} and says why", code == 1 and says in text and "nginx.conf" in text,
          f"wanted {says!r}, got {text[:300]!r}")
nginx.write(RULES, "ratelimit zone=three rule=login; ratelimit zone=one burst=2147483647 delay=0; ratelimit zone=two wait=1d;"
                   "ratelimit_fields x; location /m { ratelimit_metrics; }")
code, text = nginx.test()
check("a right one is accepted", code == 0, text[:500])

# ---- what limit_req does: the same requests to limit_req and to the module, side by side


def both(top, places, *files, scenario):
    """Runs scenario(nginx, again) on an nginx with limit_req and on one with the module."""
    for words in ({"limit_req": "limit_req"}, {"limit_req": "ratelimit"}):
        def exchanged(text):
            return re.sub(r"limit_req(_zone|_status|_dry_run|_log_level)?\b", lambda m: words["limit_req"] + (m[1] or ""),
                          text)
        name = words["limit_req"]
        nginx = Nginx(exchanged(top), exchanged(places)).start(*files)
        scenario(nginx, name, 503 if name == "limit_req" else 429)
        nginx.end()


def rates(nginx, name, refused):
    equal(f"{name}: the first passes, one more does, the third is refused", nginx.statuses("/a", 3), [200, 200, refused])
    equal(f"{name}: with the status of the place", nginx.status("/status"), 501)
    nginx.statuses("/a", 2)
    long = len(nginx.get("/long")[2])
    with socket.create_connection(("127.0.0.1", nginx.port)) as s:
        s.sendall(b"GET /long HTTP/1.0\r\n\r\n")
        time.sleep(0.6)  # it is delayed by half a second, and sent while nobody reads
        got = b""
        while more := s.recv(65536):
            got += more
    equal(f"{name}: a large answer that was delayed is whole", len(got.split(b"\r\n\r\n", 1)[1]), long)
    equal(f"{name}: who was refused was not charged, half a second later the next one passes", nginx.status("/a"), 200)
    nginx.get("/fast")
    time.sleep(0.1)
    equal(f"{name}: a long rest is no debt", nginx.status("/fast"), 200)
    equal(f"{name}: a short key", nginx.status("/key", {"X-Key": "short"}), 200)


LONG = "1234567890\n" * (1 << 16)
both("limit_req_zone $binary_remote_addr zone=one:1m rate=2r/s; limit_req_zone $binary_remote_addr zone=long:1m rate=2r/s;"
     "limit_req_zone $binary_remote_addr zone=fast:1m rate=1000r/s; limit_req_zone $http_x_key zone=key:1m rate=1000r/s;",
     "location /a { limit_req zone=one burst=1 nodelay; } location /key { limit_req zone=key burst=100; }"
     "location /status { limit_req zone=one burst=1 nodelay; limit_req_status 501; }"
     "location /long { limit_req zone=long burst=5; } location /fast { limit_req zone=fast burst=1; }",
     "a", "status", "fast", "key", scenario=lambda nginx, *words: (
         nginx.file("html/long", LONG), rates(nginx, *words)))


def two_zones(nginx, name, refused):
    for path, first in (("/t1", 1), ("/t2", 3)):
        fast, slow, and_both = f"{path}?b={first}", f"{path}?a={first}", f"{path}?a={first + 1}&b={first + 1}"
        for what, query, second in (("a fast zone", fast, 200), ("a slow one", slow, refused), ("both", and_both, refused),
                                    ("none: no key is no limit", path, 200)):
            result = nginx.status(query)
            time.sleep(0.1)
            equal(f"{name}: {what}, {path}", (result, nginx.status(query)), (200, second))


both("limit_req_zone $arg_a zone=slow:1m rate=1r/m; limit_req_zone $arg_b zone=fast:1m rate=1000r/s;",
     "location / { limit_req zone=fast; limit_req zone=slow; }"
     "location /t2 { limit_req zone=fast nodelay; limit_req zone=slow nodelay; }", "t1", "t2", scenario=two_zones)


def some_delay(nginx, name, refused):
    result = nginx.get("/d"), nginx.get("/d")
    equal(f"{name}: 1 + delay=1 pass", [status for status, _, _ in result], [200, 200])
    check(f"{name}: and do not wait", float(result[1][1]["x-time"]) < 1, result[1][1]["x-time"])
    late = []
    thread = threading.Thread(target=lambda: late.append(nginx.get("/d")))
    thread.start()
    time.sleep(0.2)
    equal(f"{name}: after burst=2 the next is refused", nginx.status("/d"), refused)
    thread.join()
    check(f"{name}: and the one before waited 2 s", late[0][0] == 200 and 1.5 < float(late[0][1]["x-time"]) < 20, late[0][:2])


both("limit_req_zone $binary_remote_addr zone=one:1m rate=30r/m;",
     "location / { limit_req zone=one delay=1 burst=2; add_header X-Time $request_time; }", "d", scenario=some_delay)


def dry_run(nginx, name, refused):
    for path, wanted in (("/delay", (200, "PASSED")), ("/delay", (200, "DELAYED_DRY_RUN")),
                         ("/reject", (200, "REJECTED_DRY_RUN")), ("/reject/off", (refused, "REJECTED")),
                         ("/free", (200, None))):
        status, fields, _ = nginx.get(path)
        equal(f"{name}: dry run, {path}", (status, fields.get("x-status")), wanted)
    log = nginx.log()
    check(f"{name}: the error log says so", "delaying request, dry run" in log and "limiting requests, dry run" in log, log)
    check(f"{name}: without a limit the variable is empty", nginx.logged("/free 200 - - -"))


both("limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m;",
     "limit_req_dry_run on; add_header X-Status $limit_req_status always; location /delay { limit_req zone=one burst=2; }"
     "location /reject { limit_req zone=one; } location /reject/off { limit_req zone=one; limit_req_dry_run off; }"
     "location /free { }", "delay", "reject", "free", scenario=dry_run)


def one_bucket(nginx, name, refused):
    """One zone in three places with other bursts: one bucket."""
    result = [nginx.status(path) for path in ("/b5 /b5 /b5 /b1 /b0 /b5 /b5 /b5 /b5 /b1 /slow".split())]
    equal(f"{name}: places of one zone share one bucket, each with its burst", result,
          [200, 200, 200, refused, refused, 200, 200, 200, refused, refused, refused])


both("limit_req_zone $arg_none$binary_remote_addr zone=one:1m rate=1r/m;",
     "location /b5 { limit_req zone=one burst=5 nodelay; } location /b1 { limit_req zone=one burst=1 nodelay; }"
     "location /b0 { limit_req zone=one; } location /slow { limit_req zone=one burst=3; }", "b5", "b1", "b0", "slow",
     scenario=one_bucket)

# Where it differs: a status of its own by default (429); a key of any length; a rate that is exact.
nginx = Nginx("ratelimit_zone $http_x_key zone=key:1m rate=1r/m;", "location / { ratelimit zone=key; }").start("a")
equal("a key of 65,600 bytes is limited as any other",
      nginx.statuses("/a", 2, {"X-Key": "x" * 65600}) + nginx.statuses("/a", 1, {"X-Key": "x" * 65599 + "y"}),
      [200, 429, 200])
nginx.end()

# ---- waiting: in the event loop, in order, while others are served

nginx = Nginx("ratelimit_zone $arg_k zone=r:1m rate=5r/s; ratelimit_zone $arg_k zone=l:1m 'limit=5/s burst 3';"
              "ratelimit_fields x retry-after;",
              "location /rate { ratelimit zone=r burst=4; } location /limit { ratelimit zone=l wait=800ms; }"
              "location /now { ratelimit zone=l; } location /free { }", workers=1).start("rate", "limit", "now", "free")
for path, at_once in (("/rate", 1), ("/limit", 3)):
    waiting = threading.Thread(target=lambda: answers.extend(nginx.at_once(path + "?k=1", at_once + 4 + 3)))
    answers = []
    waiting.start()
    time.sleep(0.1)
    begin = time.monotonic()
    equal("while they wait, others are served", nginx.status("/free"), 200)
    free = time.monotonic() - begin
    waiting.join()
    passed = [seconds for status, seconds in answers if status == 200]
    equal(f"{path}: {at_once} at once, 4 later, 3 refused", collections.Counter(status for status, _ in answers),
          {200: at_once + 4, 429: 3})
    check(f"{path}: each later one waits for its time, 0.2 s after the one before",
          all(seconds > 0.2 * i - 0.1 for i, seconds in enumerate(passed[at_once - 1:])), passed)
    check("nobody else waits", free < max(0.3, passed[-1] / 2), free)
equal("what is not allowed to wait is refused", [nginx.status("/now?k=2") for _ in range(4)], [200, 200, 200, 429])

# Clients that leave while they wait.
gone = [socket.create_connection(("127.0.0.1", nginx.port)) for _ in range(3)]
for s in gone:
    s.sendall(b"GET /rate?k=3 HTTP/1.1\r\nHost: x\r\n\r\n")
time.sleep(0.1)
for s in gone:
    s.close()
equal("clients may leave while they wait: the worker stays", nginx.status("/free"), 200)
equal("what they reserved stays reserved", [status for status, _ in nginx.at_once("/rate?k=3", 5)].count(200), 2)
run = subprocess.run(["curl", "-s", "-w", "%{http_code} ",
                      *("-o", "/dev/null", f"http://127.0.0.1:{nginx.port}/rate?k=4") * 3], text=True, capture_output=True)
equal("on one connection, too", run.stdout, "200 200 200 ")
nginx.end()

# Bodies, upstreams and requests that are sent ahead wait, too.
nginx = Nginx("ratelimit_zone $arg_k zone=r:1m rate=5r/s; client_max_body_size 8m;", "location /a { ratelimit zone=r burst=4; }"
              "location /up { ratelimit zone=r burst=4; proxy_pass http://$server_addr:$server_port/sink; }"
              "location /sink { client_max_body_size 8m; return 200 $content_length; }").start("a")
with open(nginx.path("large"), "wb") as file:
    file.write(bytes(3000000))
run = subprocess.run(["curl", "-s", "--parallel", "--parallel-immediate", "-w", "%{http_code} ", "--data-binary", "@" + nginx.path("large"),
                      *("-o", "/dev/null", f"http://127.0.0.1:{nginx.port}/up?k=1") * 6], text=True, capture_output=True)
equal("large bodies to an upstream wait", sorted(run.stdout.split()), ["200"] * 5 + ["429"])
with socket.create_connection(("127.0.0.1", nginx.port)) as s:
    s.sendall(b"GET /a?k=2 HTTP/1.1\r\nHost: x\r\n\r\n" * 4 + b"GET /a?k=2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    begin, got = time.monotonic(), b""
    while more := s.recv(65536):
        got += more
check("requests that are sent ahead on a connection wait one after the other",
      got.count(b"HTTP/1.1 200") == 5 and time.monotonic() - begin > 0.7, (got.count(b"HTTP/1.1 200"), time.monotonic() - begin))
nginx.end()

nginx = Nginx("ratelimit_zone $arg_k zone=r:1m rate=5r/s;", "location / { ratelimit zone=r burst=4; }", listen="http2")
nginx.start("a")
run = subprocess.run(["curl", "-s", "--http2-prior-knowledge", "--parallel", "--parallel-immediate", "-w", "%{http_code} ",
                      *(f"http://127.0.0.1:{nginx.port}/a?k=1", "-o", "/dev/null") * 7], text=True, capture_output=True)
equal("streams of HTTP/2 wait side by side", sorted(run.stdout.split()), ["200"] * 5 + ["429"] * 2)
nginx.end()

# ---- several limits, all or none

nginx = Nginx("ratelimit_zone $arg_k zone=one:1m 'limit=3/d'; ratelimit_zone $arg_k zone=two:1m 'limit=5/d';"
              "ratelimit_zone $arg_u zone=three:1m; ratelimit_zone $arg_k zone=win:1m 'limit=4/d window';"
              "ratelimit_zone $arg_k zone=r:1m rate=1r/m; ratelimit_rules rules; ratelimit_fields draft x retry-after;",
              "location /zones { ratelimit zone=two; ratelimit zone=one; } location /one { ratelimit zone=one; }"
              "location /two { ratelimit zone=two; } location /win { ratelimit zone=win; ratelimit zone=one; }"
              "location /table { ratelimit zone=three rule=user; ratelimit zone=three rule=group key=$arg_g; }"
              "location /group { ratelimit zone=three rule=group key=$arg_g; }"
              "location /twice { ratelimit zone=two; ratelimit zone=one; ratelimit zone=one key=$arg_j; }"
              "location /dry { ratelimit_dry_run on; add_header X-Status $ratelimit_status; ratelimit zone=r burst=2; }"
              "location /later { ratelimit zone=r burst=2; ratelimit zone=one; ratelimit zone=one key=$arg_j; }"
              "location /rate { ratelimit zone=r burst=2; ratelimit zone=one; }")
nginx.file("rules", "user 3/d\ngroup 5/d\n")
nginx.start("zones", "one", "two", "table", "group", "win", "rate", "twice", "dry", "later")
equal("two zones: the one with less decides", nginx.statuses("/zones?k=a", 8), [200] * 3 + [429] * 5)
equal("and the other was charged only for what passed", nginx.statuses("/two?k=a", 3), [200, 200, 429])
equal("two rules in one zone", nginx.statuses("/table?u=a&g=x", 8), [200] * 3 + [429] * 5)
equal("here, too", nginx.statuses("/group?g=x", 3), [200, 200, 429])
equal("users of one group share its limit", nginx.statuses("/table?u=b&g=x", 1) + nginx.statuses("/table?u=b&g=y", 4),
      [429, 200, 200, 200, 429])
equal("a window and a bucket", nginx.statuses("/win?k=b", 4) + nginx.statuses("/win?k=a", 3), [200] * 3 + [429] * 4)
status, fields, _ = nginx.get("/zones?k=c")
equal("all limits are told", (fields.get("ratelimit-policy"), fields.get("ratelimit"), fields.get("x-ratelimit-remaining")),
      ('"two";q=5;w=86400, "one";q=3;w=86400', '"two";r=4;t=17280, "one";r=2;t=28800', "2"))
nginx.statuses("/one?k=r", 3)
begin = time.monotonic()
equal("a limit that would wait does not, if another one refuses", nginx.statuses("/rate?k=r", 5), [429] * 5)
check("at once", time.monotonic() - begin < 20)
equal("and has reserved nothing", nginx.status("/rate?k=s"), 200)

# If k and j are one key, a request needs two tokens of it, but each place for itself sees that one is left: the zones are
# asked, and then one of them refuses, as when another worker was faster.
equal("what a zone gave is given back when a later zone refuses", nginx.statuses("/twice?k=w&j=w", 5), [200] + [429] * 4)
equal("all of it", nginx.statuses("/two?k=w", 5), [200] * 4 + [429])
nginx.statuses("/one?k=v", 2)
dry = [nginx.get("/dry?k=v")[1]["x-status"]]
equal("and what was reserved", nginx.statuses("/later?k=v&j=v", 4), [429] * 4)
equal("all of it, too", dry + [nginx.get("/dry?k=v")[1]["x-status"] for _ in range(3)],
      ["PASSED", "DELAYED_DRY_RUN", "DELAYED_DRY_RUN", "REJECTED_DRY_RUN"])

# Two workers and two zones, at full speed: exactly as many as the smaller limit has.
nginx.end()
nginx = Nginx("ratelimit_zone $arg_k zone=one:1m 'limit=1/d burst 3000'; ratelimit_zone $arg_k zone=two:1m 'limit=1/d burst 5000';"
              "ratelimit_fields draft x retry-after; access_log off; ratelimit_log_level info; error_log error.log notice;",
              "location /zones { ratelimit zone=two; ratelimit zone=one; } location /two { ratelimit zone=two; }").start("zones", "two")
ok, refused, other, wrong = wrk(nginx.port, path="/zones?k=a", seconds=3)
check("wrk: two zones, exactly 3,000 pass", ok == 3000 and refused > 0 and not other and not wrong, (ok, refused, other, wrong))
ok, refused, other, wrong = wrk(nginx.port, path="/two?k=a", seconds=3)
check("and the other zone has exactly what is left", 2000 - 4 <= ok <= 2000 and refused > 0 and not other and not wrong,
      (ok, refused, other, wrong))
nginx.end()

# ---- rules: by name, replaced while nginx runs

nginx = Nginx("ratelimit_zone $arg_k zone=z:1m; ratelimit_rules rules check=20ms; ratelimit_fields draft;"
              "map $arg_plan $plan { default free; gold gold; none nobody; }",
              "location /login { ratelimit zone=z rule=login; } location /plan { ratelimit zone=z rule=$plan; }"
              "location /metrics { ratelimit_metrics; }")
nginx.file("rules", "login 2/d\nlogin|vip 4/d\nfree 1/d\ngold 3/d\n")
nginx.start("login", "plan")


def loaded(text, says):
    count = nginx.log().count(says)
    nginx.file("rules", text)
    return check(f"the log says {says!r}", wait_until(lambda: nginx.log().count(says) > count), nginx.log()[-500:])


equal("a rule", nginx.statuses("/login?k=a", 3), [200, 200, 429])
equal("a key with a limit of its own", nginx.statuses("/login?k=vip", 5), [200] * 4 + [429])
equal("a rule named by a variable", nginx.statuses("/plan?k=a", 2) + nginx.statuses("/plan?k=b&plan=gold", 4),
      [200, 429, 200, 200, 200, 429])
equal("a rule that is not there, without a default, is a refusal", nginx.status("/plan?k=c&plan=none"), 500)
check("that the log explains", 'there is no rule "nobody" and no default' in nginx.log(), nginx.log()[-500:])
loaded("login 4/d\nfree 1/d\ngold 3/d\ndefault 1/d", "is loaded")
equal("a limit is raised without a reload, what was spent stays spent", nginx.statuses("/login?k=a", 3), [200, 200, 429])
equal("and there is a default now", nginx.statuses("/plan?k=c&plan=none", 2), [200, 429])
loaded("login 9/d\nfree x", "line 2, column 6")
loaded("login2 9/d\nfree 9/d\n", 'there is no rule "login", which the configuration names')
os.rename(nginx.path("rules"), nginx.path("away"))
check("a file that is gone is said", wait_until(lambda: '/rules" cannot be opened; the rules stay' in nginx.log()))
equal("all that time the rules stay", nginx.statuses("/login?k=a", 1) + nginx.statuses("/login?k=b", 5), [429] + [200] * 4 + [429])
log = nginx.log()
time.sleep(0.3)
equal("each of it is said once", nginx.log().count("the rules stay"), 3)
loaded("login 2/d shadow\nfree 1/d", "is loaded")
equal("a shadow rule refuses nobody", nginx.statuses("/login?k=s", 5), [200] * 5)
for line, count in (("/login 200 PASSED login 1", 4), ("/login 200 PASSED login 0", 4), ("/login 200 REJECTED_DRY_RUN login 0", 3)):
    check(f"but the log tells: {line}, {count} times", nginx.logged(line, count), nginx.log("access.log"))
equal("and clients are not told", [name for name in nginx.get("/login?k=s")[1] if "rate" in name], [])
samples = nginx.metrics()
equal("metrics count by zone, rule and outcome",
      [samples.get('ratelimit_requests_total{zone="z",rule="%s",outcome="%s"}' % pair)
       for pair in (("login", "PASSED"), ("login", "REJECTED"), ("login", "REJECTED_DRY_RUN"), ("login|vip", "PASSED"),
                    ("default", "PASSED"), ("default", "REJECTED"))], [10, 4, 4, 4, 1, 1])
equal("of the keys, too", samples.get('ratelimit_table_keys{zone="z"}'), 7)
nginx.end()

# A reload names another file while a worker of the old configuration still has a request that waits: that worker leaves
# the rules alone, and its request is answered.
RULED = ("location /login { ratelimit zone=z rule=login; } location /slow { ratelimit zone=slow burst=1; }"
         "location /metrics { ratelimit_metrics; }")
TOP = "ratelimit_zone $arg_k zone=z:1m; ratelimit_zone $arg_k zone=slow:1m rate=20r/m; ratelimit_rules %s check=20ms;"
nginx = Nginx(TOP % "rules", RULED, workers=1)
nginx.file("rules", "login 2/d\n")
nginx.file("rules2", "login 3/d\n")
nginx.start("login", "slow")
nginx.status("/slow?k=1")
late = []
thread = threading.Thread(target=lambda: late.append(nginx.status("/slow?k=1")))
thread.start()
check("a request waits", wait_until(lambda: 'ratelimit_requests_total{zone="slow",rule="",outcome="DELAYED"}' in nginx.metrics()))
nginx.write(TOP % "rules2", RULED)
nginx.child.send_signal(signal.SIGHUP)
check("old and new workers are there", wait_until(lambda: len(nginx.workers()) == 2 and "shutting down" in nginx.log()))
nginx.file("rules", "login 9/d\n")
time.sleep(0.5)
equal("the new file counts", (nginx.statuses("/login?k=a", 4), "is loaded" in nginx.log()), ([200, 200, 200, 429], False))
thread.join()
equal("the request that waited is answered", late, [200])
check("then its worker ends", wait_until(lambda: len(nginx.workers()) == 1))

# A reload that fails after its rules are loaded: the workers that stay load theirs again.
with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    nginx.write(TOP % "rules", RULED + f"listen 127.0.0.1:{taken.getsockname()[1]};")
    nginx.child.send_signal(signal.SIGHUP)
    check("a reload fails", wait_until(lambda: "still could not bind()" in nginx.log(), 60))
    check("the rules of the old configuration are back", wait_until(lambda: "is loaded" in nginx.log(), 60))
equal("they count", nginx.statuses("/login?k=b", 4), [200, 200, 200, 429])
nginx.end(complaints=6)

# ---- costs, and what is known only afterwards

nginx = Nginx("ratelimit_zone $arg_k zone=c:1m 'limit=10/d'; ratelimit_zone $arg_k zone=b:1m 'limit=1000/s burst 5000';",
              "location /cost { ratelimit zone=c cost=$arg_n; } location /bytes { ratelimit zone=b charge=$body_bytes_sent; }"
              "location /odd { ratelimit zone=c charge=$arg_n; } location /two { ratelimit zone=b charge=6000;"
              " ratelimit zone=c; } location /sub { auth_request /auth; log_subrequest on; ratelimit zone=c charge=4; }"
              "location /auth { ratelimit zone=c; log_subrequest on; }", workers=1)  # else the next one may come before the log
nginx.start("cost", "odd", "two", "sub", "auth")
nginx.file("html/bytes", "x" * 8000)
equal("a cost is taken", [nginx.status(f"/cost?k=a&n={n}") for n in (7, 4, 3, 1)], [200, 429, 200, 429])
status, fields, _ = nginx.get("/cost?k=b&n=11")
equal("a cost above the burst never passes, and is not told to come back", (status, "retry-after" in fields), (429, False))
check("the log says never", "retry after: never" in nginx.log())
equal("a cost of nothing is free", [nginx.status(f"/cost?k=c{n}") for n in ("", "&n=", "&n=0", "&n=-")], [200] * 4)
equal("a cost that is no number is refused", [nginx.status(f"/cost?k=c&n={n}") for n in ("x", "-1", "1.5", "9" * 30)], [500] * 4)
equal("and took nothing", nginx.status("/cost?k=c&n=10"), 200)
equal("bytes are charged when they were sent, into debt", nginx.statuses("/bytes?k=a", 3), [200, 429, 429])
retry = int(nginx.get("/bytes?k=a")[1]["retry-after"])
check("8,000 bytes of 5,000 take 3 s and a bit to come back", 3 <= retry <= 4, retry)
equal("a charge that is no number is not charged, but said", (nginx.statuses("/odd?k=o&n=x", 3), "charge \"x\" is no number" in nginx.log()),
      ([200] * 3, True))
nginx.statuses("/cost?k=t&n=10", 1)
equal("who is refused by another limit is not charged", nginx.statuses("/two?k=t", 3) + nginx.statuses("/bytes?k=t", 1),
      [429] * 3 + [200])
equal("a subrequest is not limited, and does not charge again", nginx.statuses("/sub?k=u", 4), [200] * 3 + [429])
nginx.end()

# ---- addresses, fields, variables, status codes

nginx = Nginx("ratelimit_zone $http_x_from zone=net:1m 'limit=1/d' ipv4=24 ipv6=64;"
              "ratelimit_zone $binary_remote_addr zone=bin:1m 'limit=1/d' ipv4=8;"
              "ratelimit_zone $arg_k zone=k:1m 'limit=2/d'; ratelimit_zone $arg_k zone=r:1m rate=1r/m;"
              "map $arg_real $real { default $http_x_from; 1 $binary_remote_addr; }"
              "ratelimit_zone $real zone=real:1m 'limit=1/d' ipv4=24;",
              "set_real_ip_from 127.0.0.1; real_ip_header X-Real-IP;"
              "location /net { ratelimit zone=net; } location /bin { ratelimit zone=bin; ratelimit zone=k; }"
              "location /off { ratelimit zone=k; ratelimit_fields off; } location /x { ratelimit zone=k; ratelimit_fields x; }"
              "location /std { ratelimit zone=k; } location /code { ratelimit zone=k; ratelimit_status 503; }"
              "location /named { ratelimit zone=r burst=1 nodelay; error_page 429 /sorry; } location /sorry { ratelimit zone=k; }"
              "location /real { ratelimit zone=real; } location /try { ratelimit zone=k; try_files /nothing /sorry; }"
              ).start("net", "bin", "off", "x", "std", "code", "named", "sorry", "real")


def by(address, path="/net", name="X-From"):
    return nginx.status(path, {name: address})


equal("addresses of one network share a limit",
      [by(a) for a in ("192.0.2.1", "192.0.2.77", "192.0.3.1", "::ffff:192.0.2.5", "2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1",
                       "2001:db8:1:2::34", "2001:db8:1:3::34")],
      [200, 429, 200, 429, 200, 429, 200, 200, 200])
equal("what is no address is one key", [by(a) for a in ("nonsense", "192.0.2.300", "x" * 500)], [200, 429, 429])
equal("no text is no limit", [by(""), by("")], [200, 200])
equal("binary addresses", [by(a, "/bin", "X-Real-IP") for a in ("10.1.2.3", "10.9.9.9", "11.0.0.1", "2001:db8::1", "2001:db8::2")],
      [200, 429, 200, 200, 200])
equal("also behind a map", [by("10.1.2.3", "/real?real=1", "X-Real-IP"), by("10.1.2.9", "/real?real=1", "X-Real-IP"),
                            by("10.1.2.9", "/real"), by("10.1.3.9", "/real")], [200, 429, 429, 200])


def told(path):
    status, fields, _ = nginx.get(path)
    return status, {name: value for name, value in fields.items() if "ratelimit" in name or name == "retry-after"}


equal("the default fields", [told("/std?k=f") for _ in range(3)],
      [(200, {"ratelimit-policy": '"k";q=2;w=86400', "ratelimit": '"k";r=1;t=43200'}),
       (200, {"ratelimit-policy": '"k";q=2;w=86400', "ratelimit": '"k";r=0;t=43200'}),
       (429, {"ratelimit-policy": '"k";q=2;w=86400', "ratelimit": '"k";r=0;t=43200', "retry-after": "43200"})])
equal("X fields", told("/x?k=g"), (200, {"x-ratelimit-limit": "2", "x-ratelimit-remaining": "1", "x-ratelimit-reset": "43200"}))
equal("none", [told("/off?k=g"), told("/off?k=g")], [(200, {}), (429, {})])
equal("the status is the place's", nginx.statuses("/code?k=g", 1), [503])
equal("an error page is not limited once more, and keeps the fields", [told("/named?k=h") for _ in range(3)],
      [(200, {"ratelimit-policy": '"r";q=2;w=120', "ratelimit": '"r";r=1;t=60'}),
       (200, {"ratelimit-policy": '"r";q=2;w=120', "ratelimit": '"r";r=0;t=60'}),
       (429, {"ratelimit-policy": '"r";q=2;w=120', "ratelimit": '"r";r=0;t=60', "retry-after": "60"})])
equal("a request that is redirected internally is charged once", nginx.statuses("/try?k=i", 3), [200, 200, 429])
for line in ("/std 200 PASSED k 1", "/std 429 REJECTED k 0", "/sorry 429 REJECTED r 0"):
    check(f"the log has status, rule and what remains: {line}", nginx.logged(line), nginx.log("access.log")[-500:])
nginx.end()

# ---- reload under load: nothing is lost, nothing fails

LOAD = ("ratelimit_zone $arg_k zone=z:1m '%s'; ratelimit_rules rules; access_log off; error_log error.log notice;"
        "ratelimit_log_level info; ratelimit_zone $arg_k zone=other:1m;")
PLACES = ("location /a { ratelimit zone=z; } location /r { ratelimit zone=other rule=big; }"
          "location /metrics { ratelimit_metrics; }")
nginx = Nginx(LOAD % "limit=1/d burst 20000", PLACES)
nginx.file("rules", "big 1/d burst 20000\n")
nginx.start("a", "r")


def while_loaded(path, seconds, act):
    """act() again and again, while wrk asks, at least until many were refused: (200s, refusals, other answers, acts), and
    how many 200s may be missing: a wrk that ends before the limit is used up does not count what is under way."""
    sums, missing = [0, 0, 0], 0

    def ask():
        nonlocal missing
        for _ in range(20):  # a busy machine needs more than one
            for i, count in enumerate(server.load(nginx.port, path, seconds)[:3]):
                sums[i] += count
            if sums[1] > 1000:
                break
            missing += 8

    thread = threading.Thread(target=ask)
    thread.start()
    acts = 0
    while thread.is_alive():
        acts += act()
        time.sleep(0.1)
    thread.join()
    return *sums, acts, missing


for path in ("/a", "/r"):
    ok, refused, other, reloads, missing = while_loaded(path + "?k=1", 3, nginx.reload)
    check(f"{path}: under {reloads} reloads exactly 20,000 pass, and none fails",
          20000 - missing <= ok <= 20000 and refused > 1000 and reloads > 2 and not other, (ok, refused, other, reloads, missing))
equal("nginx itself has counted exactly as many", sum(value for sample, value in nginx.metrics().items() if "PASSED" in sample), 40000)
nginx.write(LOAD % "limit=1/d burst 20001", PLACES)
check("a changed limit by reload", nginx.reload())
check("keeps what was spent", wait_until(lambda: nginx.status("/a?k=1") == 200) and nginx.statuses("/a?k=1", 2) == [429] * 2)
nginx.write(LOAD % "limit=nonsense", PLACES)
nginx.child.send_signal(signal.SIGHUP)
check("a wrong configuration is refused by a reload", wait_until(lambda: "limit nonsense is wrong" in nginx.log()))
equal("and the old one goes on", (nginx.status("/a?k=1"), nginx.status("/a?k=2")), (429, 200))
nginx.end(complaints=1)

# ---- workers are killed under load

nginx = Nginx(LOAD % "limit=1/d burst 20000", PLACES, module=PLAIN)
nginx.file("rules", "big 1/d burst 20000\n")
nginx.start("a", "r")


def kill_one():
    try:
        os.kill(nginx.workers()[0], signal.SIGKILL)
        return 1
    except (ProcessLookupError, IndexError):
        return 0


kills = 0
for path in ("/a", "/r"):
    ok, refused, other, count, missing = while_loaded(path + "?k=1", 4, kill_one)
    kills += count
    check(f"{path}: while {count} workers were killed, what the limit has passed, but for what those had under way",
          20000 - 8 * count - missing <= ok <= 20000 and count > 5 and refused > 1000 and not other, (ok, refused, other, count))
    begin = time.monotonic()
    check("then everything goes on", wait_until(lambda: nginx.status(f"{path}?k=2") == 200, 60))
    check("soon", time.monotonic() - begin < 10, time.monotonic() - begin)
    equal("and the limit holds", nginx.status(f"{path}?k=1"), 429)
passed = sum(value for sample, value in nginx.metrics().items() if "PASSED" in sample)
check("counters survive, too", 40000 - 8 * kills <= passed <= 40002, passed)
nginx.end(complaints=kills)

# ---- a flood of made-up keys: limit_req forgets, the module does not


def flood(nginx, path, first, count):
    """As many requests, each with a key of its own, in large pieces on one connection: how many passed."""
    passed = 0
    with socket.create_connection(("127.0.0.1", nginx.port)) as s:
        for begin in range(first, first + count, 200):
            s.sendall(b"".join(b"GET %s?k=%d HTTP/1.1\r\nHost: x\r\n\r\n" % (path, i) for i in range(begin, begin + 200)))
            got = b""
            while got.count(b"HTTP/1.1 ") < 200 or not got.endswith((b"\r\n\r\nflood", b"</html>\r\n")):
                got += s.recv(65536)
            passed += got.count(b"HTTP/1.1 200")
    return passed


nginx = Nginx("limit_req_zone $arg_k zone=old:64k rate=1r/m; ratelimit_zone $arg_k zone=new:64k rate=1r/m;"
              "access_log off; error_log error.log crit; limit_req_log_level info; ratelimit_log_level info;",
              "location /limit_req { limit_req zone=old; } location /ratelimit { ratelimit zone=new; }"
              "location /metrics { ratelimit_metrics; }", module=PLAIN, workers=1)
nginx.start()
for name in ("limit_req", "ratelimit"):
    nginx.file(f"html/{name}", "flood")
passed = {"limit_req": 0, "ratelimit": 0}
begin = time.monotonic()
for turn in range(4):
    for name in passed:
        passed[name] += nginx.status(f"/{name}?k=heavy") == 200
        flood(nginx, b"/" + name.encode(), 10000 * turn, 4000)
due = 1 + int((time.monotonic() - begin) / 60)
check("limit_req forgets a key that others push out, the module does not",
      passed["limit_req"] == 4 and passed["ratelimit"] <= due < 4, (passed, due))
samples = nginx.metrics()
keys, most = (samples[f'ratelimit_table_{name}{{zone="new"}}'] for name in ("keys", "capacity"))
check("and the zone is full indeed", keys > 0.99 * most, (keys, most))
nginx.end()

# ---- no leak, no use of what is not there: one process under valgrind

nginx = server.under_valgrind(
    "ratelimit_zone $arg_k zone=r:1m rate=20r/s; ratelimit_zone $arg_k zone=l:1m 'limit=5/s burst 3';"
    "ratelimit_rules rules check=20ms; ratelimit_fields x draft retry-after; ratelimit_zone $http_x_from zone=n:1m ipv6=64;",
    "location /r { ratelimit zone=r burst=4; ratelimit zone=l; } location /l { ratelimit zone=l wait=1s cost=$arg_n; }"
    "location /n { ratelimit zone=n rule=net; ratelimit zone=n rule=bytes charge=$bytes_sent; error_page 429 /free; }"
    "location /free { } location /metrics { ratelimit_metrics; }", PLAIN)
nginx.file("rules", "net 5/s\nbytes 100000/s\n")
nginx.start("r", "l", "n", "free")
for turn in range(3):
    nginx.at_once("/r?k=1", 8)
    nginx.at_once("/l?k=2&n=2", 5)
    nginx.statuses("/l?k=3&n=x", 2)
    nginx.statuses("/n", 8, {"X-From": f"2001:db8::{turn}"})
    nginx.file("rules", f"net {turn + 5}/s\nbytes 100000/s\n" if turn < 2 else "net fault")
    nginx.metrics()
check("the rules were read", wait_until(lambda: "the rules stay" in nginx.log() and nginx.log().count("is loaded") == 2), nginx.log())
server.check_valgrind(nginx)
done()
