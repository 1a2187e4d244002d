"""examples/game_server.c under real ENet clients: an honest player who became a member, and three crowds of made-up
players, one of them from the honest player's own address and one under its name."""
import os
import re
import select
import socket
import subprocess
import time

from example import build, check, children, done, equal, free_port, need, said, start, stop, wait_until

need(headers=[("enet/enet.h", "libenet-dev")])
server = build("examples/game_server.c")
client = build("tests/examples/game_client.c")

# -- bad input ---------------------------------------------------------------------------------------------------------
for words in ([], ["127.0.0.1"], ["127.0.0.1", "0"], ["127.0.0.1", "65536"], ["127.0.0.1", "x"], ["127.0.0.1", "70x"],
              ["127.0.0.1", ""], ["nowhere", "7777"], ["127.0.0.1", "7777", "8"]):
    run = subprocess.run([server, *words], text=True, capture_output=True, timeout=20)
    check(f"{words} is refused with its usage", run.returncode == 2 and run.stderr.startswith("usage: "), run)


def capture_connect():
    """The datagram with which a real ENet client asks for a connection."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.settimeout(20)
        crowd = Player("flood", s.getsockname()[1], "127.0.0.1", "x", 1, 1, 1)
        data = s.recv(2000)
        crowd.end()
    return data


class Player:
    def __init__(self, *words):
        kind, port, *rest = map(str, words)
        self.child = subprocess.Popen([client, kind, "127.0.0.1", port, *rest], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
        children.append(self.child)

    def say(self, word):
        self.child.stdin.write(word.encode() + b"\n")

    def line(self, seconds=25):
        if not select.select([self.child.stdout], [], [], seconds)[0]:
            return "nothing"
        return self.child.stdout.readline().decode().strip()

    def end(self):
        """Its last words; empty if it does not end well."""
        try:
            out = self.child.communicate(timeout=20)[0].decode()
        except subprocess.TimeoutExpired:
            return ""
        return out if self.child.returncode == 0 else ""


connect = capture_connect()
port = free_port()
game = start(server, "127.0.0.1", port)
check("it listens", wait_until(lambda: "listening" in said(game)), said(game))
run = subprocess.run([server, "127.0.0.1", str(port)], text=True, capture_output=True, timeout=20)
check("a port that is taken is an error", run.returncode == 1 and "cannot listen" in run.stderr, run)

# -- a player becomes a member -----------------------------------------------------------------------------------------
ann = Player("honest", port, "127.0.0.1", "ann", 400, 120)
words = ann.line().split()
check("a player who behaves is trusted after a while, and each move before was answered",
      words[:1] == ["trusted:"] and words[1] == words[3] and int(words[3]) >= 40, words)
proof = int(words[1]) if len(words) > 1 else 0

# -- the flood ---------------------------------------------------------------------------------------------------------
crowds = []
for of, last in ((("127.0.0.30", "ann=", 2, 2, 200), "3[01]"), (("127.0.0.2", "made_up_", 8, 1, 200), "[2-9]"),
                 (("127.0.0.1", "made_up_", 1, 4, 200), "1")):
    crowds.append(Player("flood", port, *of))
    check(f"a crowd at {of[0]} is thrown out", wait_until(lambda: re.search(rf"127\.0\.0\.{last} floods", said(game))),
          said(game))
neighbour = crowds.pop()


def datagrams(data, first, addresses, each):
    """From so many made-up addresses."""
    for i in range(addresses):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.bind((f"127.{first}.{i // 250}.{i % 250 + 1}", 0))
            for _ in range(each):
                s.sendto(data, ("127.0.0.1", port))


datagrams(os.urandom(100), 3, 1000, 5)
datagrams(connect, 4, 500, 1)
ann.say("go")
datagrams(os.urandom(1000), 5, 20, 200)
equal("during the flood each move of the member is answered", ann.line(), "answered 120 of 120")
check("the flood is still on", all(crowd.child.poll() is None for crowd in [*crowds, neighbour]))
check("the crowd next door ends", neighbour.end().startswith("players "))
ann.say("leave")
equal("the member leaves", ann.line(), "left")
datagrams(connect, 6, 500, 1)
ann.say("join")
equal("and can come back, whatever places half-open connections hold", ann.line(), "joined")
ann.say("go")
equal("and is a member still", ann.line(), "answered 120 of 120")

# -- what the flood got ------------------------------------------------------------------------------------------------
for crowd, most in zip(crowds, (4, 8)):
    text = crowd.end()
    numbers = dict(zip(("players", "sent", "answered", "out"), map(int, re.findall(r"\d+", text))))
    check("of a crowd no address that was thrown out comes back", numbers and 1 <= numbers["players"] <= most,
          text)
equal("the member was never thrown out", ann.end(), "")
check("the member ends well", ann.child.returncode == 0, ann.child.returncode)
equal("the server ends when told to", stop(game), 0)
got = {name: float(value) for name, value in re.findall(r"^([a-z ]+?) ([\d.]+)$", said(game), re.M)}
print("game_server: " + ", ".join(f"{name} {value:g}" for name, value in got.items()))
equal("the member got an answer to each move", got.get("replies to members"), 240.0)
check("all strangers together got no more than their part of the replies",
      proof <= got.get("replies to strangers", 0) <= 400 + 200 * got.get("seconds", 0), got)
check("messages and datagrams of the flood were refused", got.get("refused", 0) >= 60 and
      got.get("datagrams dropped", 0) > 500, got)
equal("the list holds the one member and its address, nobody else", got.get("member entries"), 2.0)

# -- a full list -------------------------------------------------------------------------------------------------------
small = build("examples/game_server.c", "-DMEMBERS=1", "-O0", out="game_server_small", sanitized=False)
port = free_port()
game = start(small, "127.0.0.1", port)  # its list is the smallest table, 24 places: room for eight members
check("it listens", wait_until(lambda: "listening" in said(game)), said(game))
eight = [Player("honest", port, f"127.0.0.{i}", "ann", 400, 120) for i in range(1, 9)]
for player in eight:
    check("there is room for eight members", player.line().startswith("trusted:"))
late = Player("honest", port, "127.0.0.9", "ann", 70, 1)
equal("who finds the list full plays on as a stranger", late.line(), "not trusted: 70 of 70")
for player in eight[:2]:
    player.say("go")
    equal("and the members are members still", player.line(), "answered 120 of 120")
for player in [*eight, late]:
    player.end()
stop(game)
done()
