"""The gRPC server under a client of another implementation, and our client in front of it."""
import json
import os
import signal
import subprocess

import example
from example import (BUILD, ROOT, WARNINGS, check, check_packages, done, equal, folder, free_port, head_lines, need, redis,
                     said, start, stop)

need(programs=[("node", "nodejs"), ("protoc", "protobuf-compiler"), ("redis-server", "redis-server"),
               ("grpc_cpp_plugin", "protobuf-compiler-grpc")],
     headers=[("hiredis/hiredis.h", "libhiredis-dev")])
if subprocess.run(["pkg-config", "--exists", "grpc++"]).returncode:
    example.missing("<grpcpp/grpcpp.h>", "libgrpc++-dev")

NODE_PATH = os.pathsep.join(filter(None, [os.path.join(os.path.dirname(BUILD), "node", "node_modules"),
                                          os.environ.get("NODE_PATH")]))
NODE = {**os.environ, "NODE_PATH": NODE_PATH}
for module in ("@grpc/grpc-js", "@grpc/proto-loader"):
    if subprocess.run(["node", "-e", f"require('{module}')"], env=NODE, capture_output=True).returncode:
        example.missing(module, f"npm package {module}")

# ---- build as the comment says, but into the build folder and with warnings as errors

check_packages("examples/grpc/server.cc")
words = head_lines("examples/grpc/server.cc", "Build").split()
equal("the Build line is the script and a folder", words[:2], ["sh", "examples/grpc/build.sh"])
out = os.path.join(BUILD, "grpc")
run = subprocess.run(words[:2] + [out], cwd=ROOT, text=True, capture_output=True,
                     env={**os.environ, "WARNINGS": " ".join(WARNINGS), "CXXFLAGS": os.environ.get("CXXFLAGS", "-O0")})
if not check("server and client build as the comment says, without a warning", run.returncode == 0,
             "\n" + run.stderr[:4000]):
    done()
check("the build says nothing", not run.stderr, run.stderr[:2000])
SERVER, CLIENT = os.path.join(out, "server"), os.path.join(out, "client")


def rules(text):
    path = os.path.join(folder, f"rules{len(os.listdir(folder))}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def serve(text, *options):
    port = free_port()
    return start(SERVER, f"127.0.0.1:{port}", rules(text), *options, port=port), f"127.0.0.1:{port}"


def node(address, *scenario):
    run = subprocess.run(["node", os.path.join(ROOT, "tests/examples/grpc_client.js"), address,
                          os.path.join(ROOT, "examples/grpc/limited.proto"), *map(str, scenario)],
                         env=NODE, text=True, capture_output=True, timeout=120)
    if not check("the JavaScript client runs through", run.returncode == 0 and run.stdout, run.stderr[-2000:]):
        done()
    return json.loads(run.stdout)


def codes(answers):
    return [answer["code"] for answer in answers]


def client(address, *words):
    run = subprocess.run([CLIENT, address, *map(str, words)], text=True, capture_output=True, timeout=60)
    return run.returncode, run.stdout.splitlines(), run.stderr


# ---- what a client sees

RULES = "default 2/h\n/limited.Limited/Say 3/h\n/limited.Limited/Count 2/h\n"
server, address = serve(RULES, "--key", "x-user")
got = node(address, "limits")
equal("three of six unary calls of a user pass", codes(got["ann"]), [0] * 3 + [8] * 3)
equal("another user has three of their own", codes(got["bob"]), [0] * 3 + [8])
equal("so has an address without a user", codes(got["address"]), [0] * 3 + [8])
equal("of twenty at once exactly three pass", sorted(codes(got["together"])), [0] * 3 + [8] * 17)
equal("a server's stream opens twice, whole, and is refused then", [(x["code"], x["got"]) for x in got["numbers"]],
      [(0, [1, 2, 3, 4, 5])] * 2 + [(8, [])] * 2)
equal("a stream in both directions answers", (got["before"], got["other"], got["other_end"]["code"]),
      ("before", "other", 0))
equal("it is refused at its opening, by the default rule", codes(got["refused"]), [8] * 3)
equal("one that is open is not cut meanwhile", (got["after"], got["end"]["code"]),
      ([f"after {i}" for i in range(5)], 0))

for what, answer in [("unary", got["ann"][3]), ("server stream", got["numbers"][2]), ("stream", got["refused"][0])]:
    fields, rich = answer["trailers"], answer.get("rich", {})
    retry = int(fields.get("retry-after-ms", 0))
    hour = 3600000 // (3 if what == "unary" else 2)
    check(f"{what}: retry-after-ms is the time of one token, or less", hour - 120000 < retry <= hour, fields)
    equal(f"{what}: gRPC's own push-back is the same", fields.get("grpc-retry-pushback-ms"), str(retry))
    equal(f"{what}: limit and remaining", (fields.get("ratelimit-limit"), fields.get("ratelimit-remaining")),
          ("3" if what == "unary" else "2", "0"))
    check(f"{what}: reset comes later", int(fields.get("ratelimit-reset-ms", 0)) > retry, fields)
    equal(f"{what}: the rich status", (rich.get("code"), rich.get("text"), rich.get("type")),
          (8, answer["text"], "type.googleapis.com/google.rpc.RetryInfo"))
    check(f"{what}: RetryInfo is the same time, in ns", retry - 1 <= rich.get("ms", 0) <= retry, rich)

ran = [line.split()[1] for line in said(server).splitlines() if line.startswith("ran ")]
equal("no method ran for a refused call", {name: ran.count(name) for name in set(ran)}, {"Say": 12, "Count": 2, "Echo": 2})
equal("the server ends in peace", stop(server), 0)

# ---- the store fails

for options, wanted in [((), 0), (("--fail-closed",), 14)]:
    store, port = redis()
    server, address = serve("default 3/h\n", "--key", "x-user", "--redis", f"127.0.0.1:{port}", *options)
    equal("with Redis three of five pass", codes(node(address, "say", 5, "ann")), [0] * 3 + [8] * 2)
    stop(store, signal.SIGKILL)
    equal(f"without it all get {wanted}", codes(node(address, "say", 5, "ann")), [wanted] * 5)
    equal("and the method ran, or not", said(server).count("ran Say"), 3 if wanted else 8)
    equal("the server ends in peace then, too", stop(server), 0)

# ---- our client

server, address = serve("default 1000/s\n")
refused = "8 rate limit exceeded"
equal("the client's own limit", client(address, "say", 5), (0, ["ok"] * 3 + [refused] * 2, ""))
equal("of streams, too", client(address, "echo", 5), (0, ["ok"] * 3 + [refused] * 2, ""))
equal("what it refused did not leave it", (said(server).count("ran Say"), said(server).count("ran Echo")), (3, 3))
equal("calls that wait all pass", client(address, "say", 6, "--limit", "20/s burst 2", "--wait", 20), (0, ["ok"] * 6, ""))
equal("nobody waits beyond the deadline", client(address, "say", 3, "--limit", "2/h", "--wait", 5)[1], ["ok"] * 2 + [refused])
code, lines, _ = client(address, "say", 1)
equal("a client within its limits passes", (code, lines), (0, ["ok"]))
stop(server)

# ---- bad input

for what, text, options, says in [("a broken rule", "default 5/x\n", (), ":1:"), ("no rule file", None, (), "can't be read"),
                                  ("an unknown option", "default 5/s\n", ("--what",), "--what"),
                                  ("a Redis without a port", "default 5/s\n", ("--redis", "localhost"), "HOST:PORT")]:
    path = rules(text) if text else os.path.join(folder, "nothing")
    run = subprocess.run([SERVER, "127.0.0.1:1", path, *options], text=True, capture_output=True, timeout=20)
    check(f"the server names {what}", run.returncode == 2 and says in run.stderr, (run.returncode, run.stderr))
for words in [(), ("say", "0"), ("shout", "1"), ("say", "1", "--limit", "5/x"), ("say", "1", "--wait")]:
    code, lines, text = client(address, *words)
    check(f"the client refuses {words}", code == 2 and text.startswith("client: ") and not lines, (code, text))
done()
