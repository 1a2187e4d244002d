"""The nginx module with zones in Redis: real nginx, real Redis, one machine and a cluster."""
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
from example import check, done, equal, free_port, need, redis, start, stop, wait_until

need(programs=[("redis-server", "redis-server"), ("redis-cli", "redis-tools")],
     headers=[("hiredis/hiredis.h", "libhiredis-dev")])
os.environ["RATELIMIT_REDIS"] = "no"
WITHOUT = server.build("nginx_redis_without")
del os.environ["RATELIMIT_REDIS"]
PLAIN = server.build("nginx_redis")
Nginx = functools.partial(server.Nginx, module=server.build("nginx_redis_sanitized", *server.SANITIZERS))

# ---- wrong configurations

IN = "ratelimit_redis 127.0.0.1; "
ZONES = "ratelimit_zone $arg_k zone=m:1m limit=1/s; ratelimit_zone $arg_k zone=r:1m redis limit=1/s;"
WRONG = [  # http, server, what it says
    ("ratelimit_redis;", "", 'invalid number of arguments in "ratelimit_redis"'),
    (IN + IN, "", '"ratelimit_redis" directive is there already'),
    ("", IN, '"ratelimit_redis" directive is not allowed here'),
    ("ratelimit_redis 127.0.0.1:0;", "", '"127.0.0.1:0" is no address, such as 127.0.0.1:6379 or unix:/path'),
    ("ratelimit_redis a,b;", "", '"a,b" is no address'),
    ("ratelimit_redis unix:/" + "x" * 200 + ";", "", "is no address"),
    ("ratelimit_redis 127.0.0.1 user=u;", "", '"user=" needs "password="'),
    ("ratelimit_redis 127.0.0.1 password=;", "", '"password=" is unknown, has no value, or is one too many'),
    ("ratelimit_redis 127.0.0.1 password=a password=b;", "", '"password=b" is unknown, has no value, or is one too many'),
    ("ratelimit_redis 127.0.0.1 database=x;", "", 'database "x" is no number'),
    ("ratelimit_redis 127.0.0.1 cluster database=1;", "", '"cluster" excludes "master=" and "database="'),
    ("ratelimit_redis 127.0.0.1 cluster master=m;", "", '"cluster" excludes "master=" and "database="'),
    ("ratelimit_redis 127.0.0.1 timeout=0;", "", 'timeout "0" is no time up to 60s'),
    ("ratelimit_redis 127.0.0.1 timeout=2m;", "", 'timeout "2m" is no time up to 60s'),
    ("ratelimit_redis 127.0.0.1 fail=maybe;", "", 'fail "maybe" is not "open", "closed" or "local"'),
    ("ratelimit_redis 127.0.0.1 fast;", "", '"fast" is unknown'),
    (ZONES, "", 'zone "r" is in Redis: "ratelimit_redis" is missing'),
    (IN + "ratelimit_zone $arg_k zone=r:1m redis redis limit=1/s;", "", '"redis" is unknown, or one too many'),
    (IN + ZONES, "ratelimit zone=m; ratelimit zone=r;",
     'one of the zones "m" and "r" is in Redis, the other is not: they cannot limit the same request'),
]
nginx = Nginx()
for top, places, says in WRONG:
    nginx.write(top, places)
    code, text = nginx.test()
    check(f"nginx -t refuses {(places or top)[:80]!r} and says why", code == 1 and says in text and "nginx.conf" in text,
          f"wanted {says!r}, got {text[:300]!r}")
for top in ("ratelimit_redis a,b,[::1]:7000 cluster password=p;", "ratelimit_redis a,b master=m user=u password=p database=2;",
            "ratelimit_redis unix:/run/redis.sock timeout=60s fail=closed;"):
    nginx.write(top + ZONES, "location /m { ratelimit zone=m; } location /r { ratelimit zone=r; }")
    code, text = nginx.test()
    check(f"nginx -t accepts {top}", code == 0, text[:500])
nginx = Nginx(module=WITHOUT)
nginx.write(IN, "")
code, text = nginx.test()
check("a module without hiredis says that it is", code == 1 and "this module was built without Redis: install hiredis" in text, text)
nginx.write("ratelimit_zone $arg_k zone=m:1m limit=2/d;", "location / { ratelimit zone=m; }")
nginx.start("a")
equal("and limits in memory", nginx.statuses("/a?k=1", 3), [200, 200, 429])
nginx.end(complaints=1)

# ---- the same requests to zones in memory and in Redis

store, store_port = redis()
REDIS = f"ratelimit_redis 127.0.0.1:{store_port}"


def cli(*words, port=store_port):
    return subprocess.run(["redis-cli", "-p", str(port), *words], text=True, capture_output=True, check=True, timeout=60).stdout


def forget():
    cli("FLUSHALL")


TOP = ("%(redis)s ratelimit_rules rules; ratelimit_zone $arg_k zone=l:1m %(word)s 'limit=3/d';"
       "ratelimit_zone $arg_k zone=w:1m %(word)s 'limit=3/d window'; ratelimit_zone $arg_k zone=r:1m %(word)s rate=1r/m;"
       "ratelimit_zone $arg_k zone=f:1m %(word)s rate=5r/s; ratelimit_zone $arg_k zone=b:1m %(word)s 'limit=1000/d';"
       "ratelimit_zone $arg_a zone=net:1m %(word)s limit=1/d ipv4=24; ratelimit_zone $arg_k zone=n:1m %(word)s;"
       "ratelimit_zone $arg_k zone=n2:1m %(word)s; ratelimit_fields x draft retry-after;")
PLACES = ("location /l { ratelimit zone=l; } location /w { ratelimit zone=w; } location /r { ratelimit zone=r burst=2 nodelay; }"
          "location /r0 { ratelimit zone=r; } location /f { ratelimit zone=f burst=4; } location /net { ratelimit zone=net; }"
          "location /cost { ratelimit zone=l cost=$arg_n; } location /bytes { ratelimit zone=b charge=$arg_n; }"
          "location /all { ratelimit zone=l; ratelimit zone=w; ratelimit zone=n rule=user; }"
          "location /user { ratelimit zone=n rule=user; } location /user2 { ratelimit zone=n2 rule=user; }"
          "location /shadow { ratelimit zone=l; ratelimit zone=n rule=new; ratelimit zone=n2 rule=new; }"
          "location /new { ratelimit zone=n rule=new; } location /wait { ratelimit zone=n rule=quick wait=1s; }"
          "location /dry { ratelimit_dry_run on; ratelimit zone=l; } location /metrics { ratelimit_metrics; }")
RULES = "user 2/d\nuser|vip 4/d\nnew 1/d shadow\nquick 5/s burst 1\n"
FILES = ("l", "w", "r", "r0", "f", "net", "cost", "bytes", "all", "user", "user2", "shadow", "new", "wait", "dry")
STEPS = [  # path, how many times, wanted statuses, then what the last log line has
    ("/l?k=a", 4, [200] * 3 + [429], "REJECTED l 0"),
    ("/l?k=b", 1, [200], "PASSED l 2"),
    ("/l", 4, [200] * 4, "- - -"),
    ("/w?k=a", 4, [200] * 3 + [429], "REJECTED w 0"),
    ("/r?k=a", 4, [200] * 3 + [429], "REJECTED r 0"),
    ("/r0?k=a", 1, [429], "REJECTED r 0"),
    ("/r0?k=b", 2, [200, 429], "REJECTED r 0"),
    ("/net?a=192.0.2.1", 1, [200], "PASSED net 0"),
    ("/net?a=192.0.2.77", 1, [429], "REJECTED net 0"),
    ("/cost?k=c&n=2", 2, [200, 429], "REJECTED l 1"),
    ("/cost?k=c&n=4", 1, [429], "REJECTED l 1"),
    ("/cost?k=c&n=x", 1, [500], "- - -"),
    ("/cost?k=c&n=0", 2, [200] * 2, "- - -"),
    ("/all?k=d", 4, [200] * 2 + [429] * 2, "REJECTED user 0"),
    ("/l?k=d", 2, [200, 429], "REJECTED l 0"),
    ("/w?k=d", 2, [200, 429], "REJECTED w 0"),
    ("/user?k=vip", 5, [200] * 4 + [429], "REJECTED user|vip 0"),
    ("/user2?k=vip", 5, [200] * 4 + [429], "REJECTED user|vip 0"),
    ("/shadow?k=e", 2, [200] * 2, "REJECTED_DRY_RUN new 0"),
    ("/l?k=e", 2, [200, 429], "REJECTED l 0"),
    ("/shadow?k=f", 1, [200], "PASSED new 0"),
    ("/new?k=f", 1, [200], "REJECTED_DRY_RUN new 0"),
    ("/l?k=g", 3, [200] * 3, "PASSED l 0"),
    ("/shadow?k=g", 1, [429], "REJECTED l 0"),
    ("/new?k=g", 1, [200], "PASSED new 0"),
    ("/dry?k=h", 4, [200] * 4, "REJECTED_DRY_RUN l 0"),
    ("/l?k=h", 1, [429], "REJECTED l 0"),
]


def told(nginx, path):
    status, fields, _ = nginx.get(path)
    return status, {name: re.sub('("w";r=.);t=[0-9]+', r"\1", value)  # the day of that window begins by another clock
                    for name, value in fields.items() if "ratelimit" in name or name == "retry-after"}


seen = {}
for word in ("", "redis"):
    nginx = Nginx(TOP % {"word": word, "redis": REDIS + " timeout=20s;" if word else ""}, PLACES)
    nginx.file("rules", RULES)
    nginx.start(*FILES)
    asked = 0
    for path, times, wanted, line in STEPS:
        equal(f"{word}: {path}", nginx.statuses(path, times), wanted)
        asked += times
        last = f"{path.split('?')[0]} {wanted[-1]} {line}"
        lines = lambda: nginx.log("access.log").splitlines()  # two workers write them, in any order
        check(f"{word}: the log says {last}", wait_until(lambda: len(lines()) == asked) and
              any(said.endswith(last) for said in lines()[-times:]), lines()[-times:])
    equal(f"{word}: what is charged later, into debt", nginx.statuses("/bytes?k=a&n=600", 1) and
          wait_until(lambda: nginx.status("/bytes?k=a&n=600") == 429), True)
    seen[word] = [told(nginx, path) for path in ("/l?k=t", "/l?k=t", "/r?k=t", "/r?k=t", "/r?k=t", "/all?k=t", "/l?k=a", "/net?a=1.2.3.4")]
    answers = nginx.at_once("/f?k=1", 8)
    passed = [seconds for status, seconds in answers if status == 200]
    check(f"{word}: of 8 at once 3 are refused, 4 wait, each 0.2 s longer", len(passed) == 5 and
          all(seconds > 0.2 * i - 0.1 for i, seconds in enumerate(passed)), answers)
    passed = [seconds for status, seconds in nginx.at_once("/wait?k=1", 9) if status == 200]
    check(f"{word}: a rule may wait, too", len(passed) == 6 and all(s > 0.2 * i - 0.1 for i, s in enumerate(passed)), passed)
    samples = nginx.metrics()
    equal(f"{word}: metrics", [samples.get('ratelimit_requests_total{zone="%s",rule="%s",outcome="%s"}' % of) for of in
                               (("w", "", "PASSED"), ("n2", "user|vip", "REJECTED"), ("n2", "new", "REJECTED_DRY_RUN"))], [7, 1, 1])
    nginx.end()
equal("clients are told the same", seen["redis"], seen[""])
forget()

# ---- two workers of each of two nginx share a limit: exact counts

HEAD = "access_log off; error_log error.log notice; ratelimit_log_level info;"
TWO = HEAD + REDIS + (" timeout=20s; ratelimit_zone $arg_k zone=one:1m redis 'limit=200/d burst 3000';"
                      "ratelimit_zone $arg_k zone=two:1m redis 'limit=250/d burst 5000'; ratelimit_rules rules;")
PLACES2 = ("location /one { ratelimit zone=one; } location /two { ratelimit zone=two; }"
           "location /all { ratelimit zone=two; ratelimit zone=one; }")
pair = []
for _ in range(2):
    nginx = Nginx(TWO, PLACES2)
    nginx.file("rules", "none 1/s\n")
    pair.append(nginx.start("one", "two", "all"))


def side_by_side(path, seconds, ports):
    """wrk on each: the sums of (200s, refusals, other answers)."""
    result = []
    threads = [threading.Thread(target=lambda port=port: result.append(server.load(port, path, seconds))) for port in ports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tuple(sum(counts[i] for counts in result) for i in range(3))


def until_refused(path, ports, most=20):
    """The same until the limit is used up, and how many 200s may be missing: those under way when a wrk ended."""
    sums, missing = [0, 0, 0], 0
    for _ in range(most):  # a busy machine needs more than one
        sums = [a + b for a, b in zip(sums, side_by_side(path, 2, ports))]
        if sums[1] > 100:
            break
        missing += 8 * len(ports)
    return *sums, missing


ports = [nginx.port for nginx in pair]
ok, refused, other, missing = until_refused("/all?k=1", ports)
check("two limits, two nginx with two workers each: exactly 3,000 pass", 3000 - missing <= ok <= 3000 and refused and not other,
      (ok, refused, other, missing))
ok, refused, other, more = until_refused("/two?k=1", ports)
check("and the larger limit has exactly what is left", 2000 - more <= ok <= 2000 + missing and refused and not other, (ok, refused, other))
for nginx in pair:
    equal("both refuse", nginx.statuses("/one?k=1", 2) + nginx.statuses("/two?k=1", 2), [429] * 4)

# ---- reload under load

forget()
nginx = pair[0]
acts, loads = 0, []
thread = threading.Thread(target=lambda: loads.append(until_refused("/one?k=2", [nginx.port])))
thread.start()
while thread.is_alive():
    acts += nginx.reload()
thread.join()
ok, refused, other, missing = loads[0]
check(f"under {acts} reloads exactly 3,000 pass, and none fails", 3000 - missing <= ok <= 3000 and acts > 1 and refused and not other,
      (ok, refused, other, missing, acts))
for nginx in pair:
    check("Redis was always there", "Redis cannot be asked" not in nginx.log(), re.findall(".*cannot be asked.*", nginx.log()))
    nginx.end()
forget()

# ---- Redis is stopped: nobody else waits

ONE = ("%s ratelimit_zone $arg_k zone=l:1m redis 'limit=2/d'; ratelimit_zone $arg_k zone=v:1m redis 'limit=100/d';")
PLACES3 = ("location /l { ratelimit zone=l; } location /free { } location /metrics { ratelimit_metrics; }"
           "location /bytes { ratelimit zone=v charge=10; }")
nginx = Nginx(ONE % (REDIS + " timeout=20s;"), PLACES3, workers=1, listen="http2").start("l", "free", "bytes")
plain = Nginx(ONE % (REDIS + " timeout=20s;"), PLACES3, workers=1).start("l", "free", "bytes")
worker = plain.workers()
plain.file("html/long", "x" * (32 << 20))
ahead = socket.create_connection(("127.0.0.1", plain.port))
ahead.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
time.sleep(0.3)  # nobody reads, so nginx waits until it can write
got = b""
while len(got.split(b"\r\n\r\n", 1)[-1]) < 32 << 20:
    got += ahead.recv(1 << 20)
store.send_signal(signal.SIGSTOP)
late = []
threads = [threading.Thread(target=lambda: late.append(plain.status("/l?k=1"))) for _ in range(3)]
for thread in threads:
    thread.start()
h2 = subprocess.Popen(["curl", "-s", "--http2-prior-knowledge", "--parallel", "--parallel-immediate", "-w", "%{http_code} ",
                       *(f"http://127.0.0.1:{nginx.port}/l?k=2", "-o", "/dev/null") * 3], text=True,
                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
ahead.sendall(b"GET /l?k=3 HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
gone = [socket.create_connection(("127.0.0.1", plain.port)) for _ in range(5)]
for s in gone:
    s.sendall(b"GET /l?k=4 HTTP/1.1\r\nHost: x\r\n\r\n")
time.sleep(0.3)
begin = time.monotonic()
equal("while Redis hangs, others are served", plain.statuses("/free", 50), [200] * 50)
equal("at once", (time.monotonic() - begin < 10, late), (True, []))
ahead.sendall(b"GET /free HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
ahead.settimeout(0.5)
try:
    check("what wakes a request up too early does not let it pass", False, ahead.recv(100))
except TimeoutError:
    check("what wakes a request up too early does not let it pass", True)
ahead.settimeout(60)
for s in gone:
    s.close()
check("a client that leaves is gone", wait_until(lambda: plain.log("access.log").count("/l 499 ") == 5), plain.log("access.log"))
store.send_signal(signal.SIGCONT)
for thread in threads:
    thread.join()
equal("when Redis goes on, those who waited are decided", sorted(late), [200, 200, 429])
equal("over HTTP/2, too", sorted(h2.communicate(timeout=60)[0].split()), ["200", "200", "429"])
with ahead:
    got = b""
    while more := ahead.recv(65536):
        got += more
equal("requests that were sent ahead, one after the other", re.findall(rb"HTTP/1.1 (\d+)", got), [b"200", b"200", b"429", b"200"])
equal("those who left have paid, and their worker lives", (plain.status("/l?k=4"), plain.workers()), (429, worker))



def unread():
    """Bytes that wait for Redis to read them."""
    with open("/proc/net/tcp", encoding="utf-8") as file:
        lines = [line.split() for line in file]
    return sum(int(words[4].split(":")[1], 16) for words in lines if words[1].endswith(f":{store_port:04X}") and words[3] == "01")


# A worker that is about to end waits for the answer, and not for longer.
store.send_signal(signal.SIGSTOP)
late = []
thread = threading.Thread(target=lambda: late.append(plain.status("/l?k=5")))
thread.start()
check("a request waits for Redis", wait_until(lambda: unread() > 0))
plain.child.send_signal(signal.SIGHUP)
check("old and new worker are there", wait_until(lambda: len(plain.workers()) == 2))
time.sleep(1)
equal("the old one stays for its request", (worker[0] in plain.workers(), late), (True, []))
begin = time.monotonic()
store.send_signal(signal.SIGCONT)
thread.join()
equal("which is answered", late, [200])
check("then it ends, long before the time for an answer is over",
      wait_until(lambda: worker[0] not in plain.workers()) and time.monotonic() - begin < 15, time.monotonic() - begin)

# The worker ends by force while an answer is out.
store.send_signal(signal.SIGSTOP)
thread = threading.Thread(target=lambda: late.append(len(subprocess.run(
    ["curl", "-s", f"http://127.0.0.1:{plain.port}/l?k=6"], capture_output=True).stdout)))
thread.start()
time.sleep(0.5)
equal("a worker ends at once, if it must", stop(plain.child, signal.SIGTERM, 15), 0)
thread.join()
store.send_signal(signal.SIGCONT)
check("and in order", not re.findall(r"\[(?:alert|emerg|crit)\]|anitizer|runtime error", plain.log()), plain.log()[-1000:])
nginx.end()

# ---- Redis hangs for longer than its time, or is not there: open, closed, local

for fail, statuses, said in (("open", [200] * 5, "pass"), ("closed", [503] * 5, "are refused"),
                             ("local", [200, 200, 429, 429, 429], "are decided in memory")):
    forget()
    mine = redis()
    nginx = Nginx(f"ratelimit_redis 127.0.0.1:{mine[1]} timeout=200ms fail={fail}; ratelimit_rules rules;"
                  "ratelimit_zone $arg_k zone=l:1m redis 'limit=2/d'; ratelimit_zone $arg_k zone=n:1m redis;"
                  "ratelimit_zone $arg_k zone=r:1m redis rate=1r/m;",
                  PLACES3.split("location /bytes")[0] + "location /hard { ratelimit zone=n rule=hard; }"
                  "location /soft { ratelimit zone=n rule=soft; } location /both { ratelimit zone=l; ratelimit zone=n rule=hard; }"
                  "location /dry { ratelimit_dry_run on; ratelimit zone=l; } location /charge { ratelimit zone=l charge=5; }"
                  "location /shadow { ratelimit zone=l; ratelimit zone=n rule=new; } location /new { ratelimit zone=n rule=new; }"
                  "location /r { ratelimit zone=r burst=1 nodelay; }", workers=1)
    nginx.file("rules", "hard 9/d closed\nsoft 9/d open\nnew 1/d shadow\n")
    nginx.start("l", "free", "hard", "soft", "both", "dry", "charge", "shadow", "new", "r")
    equal(f"{fail}: with Redis", nginx.statuses("/l?k=0", 3), [200, 200, 429])
    mine[0].send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    first = nginx.status("/l?k=1")
    check(f"{fail}: a request waits for timeout=, and not for long", 0.1 < time.monotonic() - begin < 10, time.monotonic() - begin)
    equal(f"{fail}: and then", [first] + nginx.statuses("/l?k=1", 4), statuses)
    begin = time.monotonic()
    equal(f"{fail}: others are served meanwhile", nginx.statuses("/free", 20), [200] * 20)
    check(f"{fail}: the log says what happens", wait_until(lambda: re.search(
        rf"\[error\].* Redis cannot be asked: .*; requests {said}", nginx.log())), nginx.log()[-500:])
    name = {200: "PASSED", 429: "REJECTED", 503: "REJECTED"}
    for status in set(statuses):
        rest = "\\d" if fail == "local" else "-"
        check(f"{fail}: the status variable says it: {status}", wait_until(lambda: re.search(
            rf"^/l {status} {name[status]}_WITHOUT_REDIS l {rest}$", nginx.log("access.log"), re.M)), nginx.log("access.log"))
    mine[0].send_signal(signal.SIGCONT)
    stop(mine[0])
    count = nginx.log().count("Redis cannot be asked")
    begin = time.monotonic()
    equal(f"{fail}: a rule with closed refuses", nginx.statuses("/hard?k=2", 20), [503] * 20)
    equal(f"{fail}: one with open does not", nginx.statuses("/soft?k=2", 20), [200] * 20)
    equal(f"{fail}: the strictest of a request counts", nginx.status("/both?k=2"), 503)
    check(f"{fail}: a Redis that is not there costs no time", time.monotonic() - begin < 10, time.monotonic() - begin)
    check(f"{fail}: the log is not flooded", nginx.log().count("Redis cannot be asked") - count <= time.monotonic() - begin + 2)
    equal(f"{fail}: a dry run refuses nobody", nginx.statuses("/dry?k=3", 5), [200] * 5)
    equal(f"{fail}: nor does a shadow rule", nginx.statuses("/new?k=3", 3), [200] * 3)
    equal(f"{fail}: beside another limit", nginx.statuses("/shadow?k=4", 3), statuses[:3])
    equal(f"{fail}: charges", nginx.statuses("/charge?k=5", 1) + [wait_until(lambda: nginx.status("/charge?k=5") == 429, 3)],
          [503, False] if fail == "closed" else [200, fail == "local"])
    for path in ("/l?k=6", "/r?k=7"):
        equal(f"{fail}: {path}: clients are told numbers only if there are some", "ratelimit" in nginx.get(path)[1], fail == "local")
    equal(f"{fail}: a rate", nginx.statuses("/r?k=6", 3), statuses[:3])
    samples = nginx.metrics()
    outcome = 'ratelimit_requests_total{zone="l",rule="",outcome="%s_WITHOUT_REDIS"}'
    check(f"{fail}: metrics count it", samples.get(outcome % ("REJECTED" if fail == "closed" else "PASSED"), 0) > 5, samples)
    again = start("redis-server", "--port", mine[1], "--bind", "127.0.0.1", "--save", "", port=mine[1])
    check(f"{fail}: when Redis is back, it decides again", wait_until(lambda: told(nginx, "/l?k=7") and not nginx.log("access.log").rstrip(
        ).splitlines()[-1].split()[2].endswith("WITHOUT_REDIS")))
    check(f"{fail}: its limits hold", wait_until(lambda: nginx.status("/l?k=8") == 429))
    nginx.end()
    stop(again)

# A password, a database, a Unix socket, a user, sentinels.
path = os.path.join(server.folder, "redis.sock")
mine = redis("--unixsocket", path, "--requirepass", "secret")
nginx = Nginx(ONE % f"ratelimit_redis unix:{path} password=secret database=3;", PLACES3).start("l")
equal("a Unix socket, with password and database", nginx.statuses("/l?k=1", 3), [200, 200, 429])
equal("where the key is", cli("-a", "secret", "--no-auth-warning", "-n", "3", "DBSIZE", port=mine[1]), "1\n")
nginx.end()
nginx = Nginx(ONE % f"ratelimit_redis 127.0.0.1:{mine[1]} password=wrong fail=closed;", PLACES3).start("l")
equal("a wrong password is a failure", nginx.status("/l?k=1"), 503)
check("in the server's words", "WRONGPASS" in nginx.log(), nginx.log()[-500:])
nginx.end()
cli("-a", "secret", "--no-auth-warning", "ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", port=mine[1])
cli("-a", "secret", "--no-auth-warning", "CONFIG", "SET", "requirepass", "", port=mine[1])
port = free_port()
with open(os.path.join(server.folder, "sentinel.conf"), "w", encoding="utf-8") as file:
    file.write(f"port {port}\nbind 127.0.0.1\nsentinel monitor m 127.0.0.1 {mine[1]} 1\n")
sentinel = start("redis-server", os.path.join(server.folder, "sentinel.conf"), "--sentinel", port=port)
nginx = Nginx(ONE % f"ratelimit_redis 127.0.0.1:{port} master=m user=u password=p fail=closed;", PLACES3).start("l")
check("a sentinel that knows the master, and a user", wait_until(lambda: nginx.status("/l?k=1") == 200))
check("decided there", wait_until(lambda: nginx.status("/l?k=1") == 429))
nginx.end()
stop(sentinel)
stop(mine[0])

# ---- a cluster: limits with keys on two nodes

buses = [free_port(), free_port()]
nodes = [redis("--cluster-enabled", "yes", "--cluster-config-file", f"nodes{bus}.conf", "--cluster-node-timeout", "20000",
               "--cluster-port", bus) for bus in buses]
for (child, port), slots in zip(nodes, (("0", "8191"), ("8192", "16383"))):
    cli("CLUSTER", "ADDSLOTSRANGE", *slots, port=port)
cli("CLUSTER", "MEET", "127.0.0.1", str(nodes[1][1]), str(buses[1]), port=nodes[0][1])
check("the cluster is there", wait_until(lambda: all("cluster_state:ok" in cli("CLUSTER", "INFO", port=port) and "cluster_known_nodes:2"
                                                     in cli("CLUSTER", "INFO", port=port) for _, port in nodes), 60))
nginx = Nginx(f"ratelimit_redis 127.0.0.1:{nodes[0][1]} cluster timeout=20s; ratelimit_zone $arg_k zone=l:1m redis 'limit=5/d';"
              "ratelimit_zone $arg_u zone=u:1m redis 'limit=3/d'; ratelimit_zone $arg_k zone=w:1m redis 'limit=9/d window';",
              "location /l { ratelimit zone=l; } location /u { ratelimit zone=u; } location /all { ratelimit zone=l; ratelimit zone=u; }"
              "location /one { ratelimit zone=l; ratelimit zone=w; }").start("l", "u", "all", "one")
for i in range(8):
    equal("keys on any node", nginx.statuses(f"/u?u={i}", 4), [200] * 3 + [429])
    equal("limits on two nodes, one after the other", nginx.statuses(f"/all?k=k{i}&u=u{i}", 5), [200] * 3 + [429] * 2)
    equal("what the first gave is given back", nginx.statuses(f"/l?k=k{i}", 3), [200, 200, 429])
    equal("limits on one key are on one node", nginx.statuses(f"/one?k=o{i}", 6), [200] * 5 + [429])
check("both nodes have keys", all(int(cli("DBSIZE", port=port)) > 3 for _, port in nodes))
check("without a failure", "Redis cannot be asked" not in nginx.log(), nginx.log()[-500:])
nginx.end()
for child, _ in nodes:
    stop(child)

# ---- no leak, no use of what is not there: one process under valgrind

forget()
nginx = server.under_valgrind(
    f"{REDIS} timeout=1s fail=local; ratelimit_zone $arg_k zone=l:1m redis 'limit=5/s burst 3'; ratelimit_rules rules;"
    "ratelimit_zone $arg_k zone=r:1m redis rate=20r/s; ratelimit_zone $arg_k zone=n:1m redis;",
    "location /l { ratelimit zone=l wait=1s; } location /r { ratelimit zone=r burst=4; ratelimit zone=l charge=1; }"
    "location /n { ratelimit zone=n rule=new; ratelimit zone=n rule=old; } location /free { }", PLAIN)
nginx.file("rules", "new 2/s shadow\nold 3/s\n")
nginx.start("l", "r", "n", "free")
for turn in range(2):
    nginx.at_once("/l?k=1", 6)
    nginx.at_once("/r?k=2", 6)
    nginx.statuses("/n?k=3", 6)
    store.send_signal(signal.SIGSTOP)
    gone = [socket.create_connection(("127.0.0.1", nginx.port)) for _ in range(3)]
    for s in gone:
        s.sendall(b"GET /l?k=4 HTTP/1.1\r\nHost: x\r\n\r\n")
    time.sleep(0.3)
    for s in gone:
        s.close()
    nginx.at_once("/n?k=3", 4)
    store.send_signal(signal.SIGCONT)
    check("Redis decides again", wait_until(lambda: nginx.status("/n?k=5") and wait_until(
        lambda: not nginx.log("access.log").rstrip().endswith("WITHOUT_REDIS"), 1), 60))
stop(store)
nginx.statuses("/n?k=6", 4)
server.check_valgrind(nginx)
done()
