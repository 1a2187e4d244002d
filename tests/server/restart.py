"""The table outlives the server: in a file, under kill -9; handed over to another process, under load."""
import atexit
import os
import re
import signal
import subprocess
import threading

import example
from example import ROOT, check, equal, free_port, http, said, start, stop, wait_until
from server.common import Client, NODE, SERVER, ask, encode, ends_cleanly, no_fault_found, path, refused, server, write

LIMIT = "1/h burst 1000000"


def file():
    table = path("table")
    words = ["--file", table, "--keys", "1000"]
    child, port = server(*words)
    equal("some tokens are taken", ask(port, "TAKE", "kept", "1/d burst 10", 4)[2], 6)
    check("another server can't use the file meanwhile", "another server uses it" in refused(*words)[1])
    equal("it is killed", stop(child, signal.SIGKILL), -signal.SIGKILL)
    check("a table of another size is left as it is", "left as it is" in refused("--file", table, "--keys", "2000")[1])
    child, port = server(*words)
    equal("after kill -9 the table is as it was", ask(port, "PEEK", "kept", "1/d burst 10")[2], 6)
    check("the file is for its owner alone", os.stat(table).st_mode & 0o777 == 0o600)
    ends_cleanly(child, "a server with a file")
    with open(table, "r+b") as damaged:
        damaged.write(b"\xff" * 64)
    check("a damaged table is left as it is", "left as it is" in refused(*words)[1])
    equal("and no drafts lie about", [name for name in os.listdir(os.path.dirname(table)) if name.startswith("table.")], [])


def killed():
    words = ["--file", path("loaded"), "--keys", "1000"]
    child, port = server(*words)
    sent = passed = 0
    for _ in range(5):
        client = Client(port)
        client.send(encode(["TAKE", "load", LIMIT]) * 3000)
        sent += 3000
        for _ in range(500):
            passed += client.answer()[0]
        stop(child, signal.SIGKILL)
        while (answer := client.answer()) is not None:
            passed += answer[0]
        client.close()
        child, port = server(*words)
    left = ask(port, "PEEK", "load", LIMIT)[2]
    check("killed five times under load: what was answered is in the table, and nothing that was not sent",
          10**6 - sent <= left <= 10**6 - passed and passed >= 2500, (left, passed))
    ends_cleanly(child, "a server that goes on after kill -9")


def dead_socket():
    where = path("left")
    child = start(SERVER, "--listen", f"unix:{where}", unix=where)
    check("two servers can't have the same unix socket", "another server listens" in refused("--listen", f"unix:{where}")[1])
    stop(child, signal.SIGKILL)
    check("a server that is killed leaves its unix socket", os.path.exists(where))
    child = start(SERVER, "--listen", f"unix:{where}", unix=where)
    equal("the next one takes it over", ask(where, "PING"), "PONG")
    ends_cleanly(child, "a server on a unix socket")


class Load:
    """Threads that take tokens of a rule, on a new connection now and then, until they are stopped."""

    def __init__(self, port):
        self.port, self.stopping = port, False
        self.taken = self.unsure = 0
        self.turned_away = []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(4)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while not self.stopping:
            try:
                client = Client(self.port)
            except OSError as error:
                self.turned_away.append(error)
                return
            for _ in range(20):
                try:
                    answer = client.ask("RULE", "hand", "k")
                except OSError:
                    answer = None
                with self.lock:
                    self.taken += answer[0] if answer else 0
                    self.unsure += not answer
                if not answer:
                    break
            client.close()

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join()


def has_ended(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as about:
            return about.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def end_at_last(pid):
    if not has_ended(pid):
        os.kill(pid, signal.SIGKILL)


def take_over(*where):
    sock, metrics = path("handed.socket"), free_port()
    child, port = server("--rules", write("handed.rules", f"hand {LIMIT}\n"), "--listen", f"unix:{sock}",
                         "--metrics", f"127.0.0.1:{metrics}", "--drain-s", "3", *where)
    write("handed.rules", "hand 1/h burst\n")
    child.send_signal(signal.SIGUSR2)
    check("if the new process does not start the old one goes on",
          wait_until(lambda: "did not start; this one goes on" in said(child)), said(child))
    equal("as if nothing had been", ask(port, "PEEK", "k", "@hand")[2], 10**6)
    write("handed.rules", f"hand {LIMIT}\n")

    patient = Client(port)
    patient.ask("PING")
    steady = subprocess.Popen(["node", os.path.join(ROOT, "tests/server/client.js"), "steadily", str(port)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=NODE)
    example.children.append(steady)
    equal("ioredis asks steadily", steady.stdout.readline(), "begun\n")
    load = Load(port)
    check("tokens are taken", wait_until(lambda: load.taken > 50))
    child.send_signal(signal.SIGUSR2)
    check("a new process takes over", wait_until(lambda: "has taken over" in said(child)), said(child))
    later, before = int(re.search(r"process (\d+) has taken over", said(child)).group(1)), load.taken
    atexit.register(end_at_last, later)
    equal("who was connected is answered once more, and closed", (patient.ask("PING"), patient.closed()), ("PONG", True))
    equal("the old process ends with exit code 0", child.wait(20), 0)
    check("tokens are taken from the new one", wait_until(lambda: load.taken > before + 200))
    load.stop()
    words = steady.communicate("", 60)[0]
    check("ioredis has noticed nothing: all its calls were answered", re.fullmatch(r"ok: \d\d+ answered\n", words), words)
    left = ask(port, "PEEK", "k", "@hand")[2]
    equal("no connection was refused", load.turned_away, [])
    check("the table was never lost: what was answered was taken, and what is uncertain at most",
          10**6 - load.taken - load.unsure <= left <= 10**6 - load.taken, (left, load.taken, load.unsure))
    check("hardly anything is uncertain", load.unsure <= 8, load.unsure)
    equal("the unix socket and the metrics went along", (ask(sock, "PING"), http(metrics, "/metrics")[0]), ("PONG", 200))
    if where:
        check("the file is still locked", "another server uses it" in refused(*where)[1])
    os.kill(later, signal.SIGTERM)
    check("the new process ends", wait_until(lambda: not os.path.exists(sock) and has_ended(later)))
    no_fault_found(child, "both")


def run():
    file()
    killed()
    dead_socket()
    take_over()
    take_over("--file", path("handed"), "--keys", "1000")
