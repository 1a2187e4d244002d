"""Bad command lines and files; requests that are cut at every byte, malformed, too long, random."""
import random
import socket

from example import check, equal
from server.common import Client, Failed, SEED, ask, encode, ends_cleanly, free_port, path, refused, server, write

LIMIT = "1/h burst 1000"


def command_lines():
    rules = write("faulty", "login 5/m\napi 5/minute\n")
    for words, code, text in (
            (["--what", "1"], 2, "unknown option --what"), (["--keys"], 2, "missing"), (["--keys", "0"], 2, "--keys"),
            (["--keys", "1k"], 2, "--keys"), (["--keys", "9" * 20], 2, "--keys"), (["--clients", "-1"], 2, "--clients"),
            (["--listen", "6380"], 2, "ADDRESS:PORT"), (["--listen", "127.0.0.1:0"], 2, "ADDRESS:PORT"),
            (["--listen", "127.0.0.1:65536"], 2, "ADDRESS:PORT"), (["--listen", "nowhere:1"], 2, "no address"),
            (["--listen", "unix:"], 2, "unix:PATH"), (["--listen", "unix:" + "x" * 200], 2, "unix:PATH"),
            (["--listen", "unix:/dev/null"], 1, "no socket"), (["--listen", "192.0.2.1:6380"], 1, "192.0.2.1"),
            (["--listen", "127.0.0.1:1"] * 5, 2, "at most 4"), (["--when-full", "refuse"], 2, "--when-full"),
            (["--rules", path("absent")], 2, "absent: No such file"), (["--rules", rules], 2, "faulty:2:8: not a limit"),
            (["--password-file", path("absent")], 2, "absent"), (["--password-file", write("empty", "\n")], 2, "empty"),
            (["--file", rules], 1, "left as it is"), (["--file", "/dev/null"], 1, "left as it is"),
            (["--file", path("absent/x")], 1, "absent/x")):
        got, said, out = refused(*words)
        check(f"{words} ends with {code} and says why", got == code and text in said and not out, (got, said[-500:]))
    code, said, out = refused("--help")
    check("--help lists the options", code == 0 and out.startswith("usage:"), (code, said))


SENT = (encode(["TAKE", "cut", LIMIT]) + b"PING\r\n" + encode(["ECHO", b"\r\n$3\r\n"]) + b"*0\r\n\r\n*-1\r\n"
        + f'TAKE  cut "{LIMIT}" 2\n'.encode() + encode(["THROTTLE", "a\0b", 5, 1, 10**6]) + encode(["NO"]) + encode(["PING"]))


def is_right(client):
    """The answers to SENT."""
    got = [client.answer() for _ in range(7)]
    return ([got[0][0], got[1], got[2], got[3][0], got[4][1], got[5], got[6]]
            == [1, "PONG", b"\r\n$3\r\n", 1, 5, "ERR unknown command 'NO'", "PONG"]) or got


def cuts(port):
    clients = [Client(port) for _ in range(len(SENT) + 1)]
    for cut, client in enumerate(clients):
        client.send(SENT[:cut])
    equal("half requests keep nobody waiting", ask(port, "PING"), "PONG")  # by now the server has read them
    for cut, client in enumerate(clients):
        client.send(SENT[cut:])
        equal(f"a request that is cut at byte {cut} is answered as a whole one", is_right(client), True)
        client.close()
    equal("and is charged once", ask(port, "PEEK", "cut", LIMIT)[2], 1000 - 3 * len(clients))
    for cut in range(len(SENT)):  # the rest never comes
        client = Client(port)
        client.send(SENT[:cut])
        client.close()
    client = Client(port)
    for byte in SENT:
        client.send(bytes([byte]))
    equal("byte by byte", is_right(client), True)
    client.close()


def malformed(port):
    for sent, text in (
            (b"*33\r\n", "0 to 32"), (b"*99999999999999\r\n", "0 to 32"), (b"*-2\r\n", "0 to 32"), (b"*x\r\n", "0 to 32"),
            (b"*\r\n", "0 to 32"), (b"*1\n", "0 to 32"), (b"*1\rx", "0 to 32"), (b"*00000000001\r\n", "0 to 32"),
            (b"*1\r\n:1\r\n", "'$'"), (b"*1\r\nPING\r\n", "'$'"), (b"*1\r\n$x\r\n", "too long"), (b"*1\r\n$-1\r\n", "too long"),
            (b"*1\r\n$4097\r\n", "too long"), (b"*1\r\n$99999999999\r\n", "too long"),
            (b"*2\r\n$2000\r\n" + b"x" * 2000 + b"\r\n$2100\r\n", "too long"), (b"*1\r\n$4\r\nPINGxx", "longer than it says"),
            (b"*1\r\n$4\r\nPING\rx", "longer than it says"), (b"x" * 4096, "too long"), (b'ECHO "x\r\n', "quoted"),
            (b'ECHO "x"y\r\n', "quoted"), (b"x " * 33 + b"\r\n", "32 words")):
        client = Client(port)
        client.send(b"PING\r\n" + sent)
        answer = (client.answer(), client.answer())
        check(f"{sent[:30]} is told what is wrong, and closed",
              answer[0] == "PONG" and isinstance(answer[1], Failed) and text in answer[1] and client.closed(), answer)
        client.close()
    equal("the longest request there is", len(ask(port, "ECHO", "x" * 4060)), 4060)
    client = Client(port)
    client.send(b"PING " + b"x" * 4089 + b"\r\n")
    equal("the longest line", len(client.answer()), 4089)
    client.close()
    client = Client(port)
    client.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nTAKE a 1/h\r\n")
    check("a browser that was sent here gets no further than its first line",
          "unknown command" in client.answer() and client.closed())
    client.close()
    client = Client(port)
    try:
        for _ in range(1000):
            client.send(b"y" * 65536)
        check("an endless line is cut off", False)
    except OSError:
        check("an endless line is cut off", True)
    client.close()


WORDS = [b"TAKE", b"TAKEALL", b"@login", b"1/h burst 3", b"THROTTLE", b"*", b"$", b"\r\n", b"\n", b'"', b"5", b"4095", b"-1", b" ",
         b"\0", b"HELLO", b"COMMAND", b"INFO", b"PEEK", b"k" * 500, b"*3\r\n$4\r\nTAKE\r\n$1\r\na\r\n$3\r\n1/h\r\n",
         encode(["TAKE", "f", "1/h"]), encode(["TAKEALL", "f", "1/h", 1, "g", "2/h", 2]), SENT]
HTTP = [b"GET /metrics HTTP/1.1\r\n", b"\r\n", b"\n", b"Host: x\r\n", b"GET ", b"x" * 900]


def random_bytes(where, count, seeds, rng):
    for _ in range(count):
        client = Client(where, 5)
        data = bytearray(b"".join(rng.choice(seeds) if rng.random() < 0.8 else rng.randbytes(rng.randrange(20))
                                  for _ in range(rng.randrange(1, 60))) or b"x")
        for _ in range(rng.randrange(3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        part = len(data) // rng.randrange(1, 4) + 1
        try:
            for at in range(0, len(data), part):
                client.send(data[at:at + part])
            if rng.random() < 0.5:
                client.socket.shutdown(socket.SHUT_WR)
                while client.socket.recv(65536):
                    pass
        except OSError:
            pass
        client.close()


def run():
    command_lines()
    metrics = free_port()
    child, port = server("--metrics", f"127.0.0.1:{metrics}", "--rules", write("bad.rules", "login 1/h burst 2\n"))
    cuts(port)
    malformed(port)
    rng = random.Random(SEED)
    random_bytes(port, 1500, WORDS, rng)
    random_bytes(metrics, 300, HTTP, rng)
    equal("random bytes harm nobody", ask(port, "PING"), "PONG")
    ends_cleanly(child, "a server that was sent anything")
