"""examples/firmware: built for a Cortex-M3 and run under qemu-system-arm, spoken to over its UART. With -icount its
time comes from the instructions it runs (and passes as ours does while it sleeps), so a busy host costs it no tick."""
import os
import re
import select
import subprocess
import time

from example import BUILD, ROOT, build, check, children, done, equal, need

need(programs=[("arm-none-eabi-gcc", "gcc-arm-none-eabi"), ("arm-none-eabi-size", "binutils-arm-none-eabi"),
               ("qemu-system-arm", "qemu-system-arm")])
elf = build("examples/firmware/main.c", sanitized=False)

# -- memory ------------------------------------------------------------------------------------------------------------
sections = dict(re.findall(r"^\.(\S+) +(\d+) ", subprocess.run(["arm-none-eabi-size", "-A", elf], text=True,
                                                                 capture_output=True).stdout, re.M))
flash = int(sections["text"]) + int(sections["data"])
ram = sum(int(sections[name]) for name in ("stack", "data", "bss"))
print(f"firmware: flash {flash:,} of 32,768 bytes, RAM {ram:,} of 16,384 (of it stack {int(sections['stack']):,})")
check("flash and RAM are within a small part", 0 < flash <= 32768 and 0 < ram <= 16384)
with open(os.path.join(ROOT, "examples/firmware/link.ld"), encoding="utf-8") as file:
    small = re.sub(r"(RAM .*LENGTH = )16K", r"\g<1>4K", file.read())
os.makedirs(BUILD, exist_ok=True)
with open(os.path.join(BUILD, "small.ld"), "w", encoding="utf-8") as file:
    file.write(small)
run = subprocess.run(["arm-none-eabi-gcc", "-mcpu=cortex-m3", "-mthumb", "-Os", "-ffreestanding", "-nostdlib", "-I.",
                      "-fno-tree-loop-distribute-patterns", "-DSEMIHOSTING", "-T", os.path.join(BUILD, "small.ld"),
                      "examples/firmware/main.c", "-lgcc", "-o", os.path.join(BUILD, "small.elf")], cwd=ROOT, text=True,
                     capture_output=True)
check("the linker refuses what does not fit the RAM", run.returncode and "region `RAM' overflowed" in run.stderr,
      run.stderr)


class Chip:
    def __init__(self):
        self.chip = subprocess.Popen(["qemu-system-arm", "-M", "lm3s6965evb", "-icount", "shift=5", "-kernel", elf,
                                      "-semihosting", "-display", "none", "-monitor", "none", "-serial", "stdio"],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        children.append(self.chip)
        self.rest = b""
        self.sent = 0
        self.all = []
        equal("it starts", self.line(), "ready")

    def line(self):
        """The next line; None if there is none for too long."""
        end = time.monotonic() + 20
        while b"\n" not in self.rest:
            if not select.select([self.chip.stdout], [], [], max(0, end - time.monotonic()))[0]:
                return None
            more = os.read(self.chip.stdout.fileno(), 4096)
            if not more:
                return None
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        self.all.append(line.decode("ascii", "replace"))
        return self.all[-1]

    def send(self, data):
        data = data if isinstance(data, bytes) else data.encode()
        self.sent += len([line for line in re.split(rb"[\r\n]", data) if line])
        self.chip.stdin.write(data)
        self.chip.stdin.flush()

    def ask(self, text, count=1):
        """What it answers, count lines, to these lines."""
        self.send(text)
        return [self.line() for _ in range(count)]

    def upto(self, pattern):
        """Reads until a line matches; the match."""
        while True:
            line = self.line()
            if line is None:
                check(f"an answer like {pattern} comes", False, self.all[-5:])
                done()
            found = re.fullmatch(pattern, line)
            if found:
                return found

    def time(self, node):
        self.send(f"{node} time\n")
        return int(self.upto(rf"{node} (\d+) ms")[1])

    def counts(self, node):
        self.send(f"{node} count\n")
        words = self.upto(rf"{node} (lines .*)")[1].split()
        return dict(zip(words[::2], map(int, words[1::2])))


# -- what it answers ---------------------------------------------------------------------------------------------------
chip = Chip()
got = chip.ask("1 start\n2 start\r\n\r\n3 stop\n1 start\n2 start\n3 nothing\n", 6)
equal("four starts by three nodes", got, ["1 pump on", "2 pump on", "3 pump off", "1 pump on", "2 pump on",
                                           "3 unknown command"])
got = chip.ask("4 start\n4 stop\n", 2)
again = re.fullmatch(r"4 start refused, again in (\d+) s", got[0] or "")
check("the fifth in an hour is refused, whoever asks, until a quarter of an hour has passed since the first",
      again and 600 < int(again[1]) <= 900, got)
equal("the pump can be stopped all the same", got[1], "4 pump off")
wrong = [b"start", b"x start", b"1", b"1 ", b" 1 start", b"-1 stop", b"4294967296 stop", b"99999999999999999999 stop",
         b"1  \xff", b"1 st\x00op", b"1 stop\x1b", b"1" * 28, b"5 " + b"x" * 26, b"5 " + b"x" * 5000]
chip.send(b"\n".join(wrong) + b"\n\n\r\n")
equal("the largest node's number, and the longest line, are taken",
      chip.ask(f"4294967295 stop\n6 {'x' * 25}\n", 2), ["4294967295 pump off", "6 unknown command"])
counts = chip.counts(6)
equal("lines that are none are counted, and do nothing else", (counts["bad"], counts["lines"]), (len(wrong), chip.sent))

# -- one that babbles --------------------------------------------------------------------------------------------------
before = chip.time(21)
heard = 0
for turn in range(9):
    chip.send("7 start\n" * 250)
    heard += chip.time(20) >= before
equal("of a node within its limit each line is answered while another babbles", heard, 9)
counts, after = chip.counts(22), chip.time(23)
through = len([line for line in chip.all if line.startswith("7 ")])
check("of 2,250 lines of the other its burst passes, and one more each second",
      10 <= through <= 10 + (after - before) // 1000, (through, before, after))
equal("and none of them starts the pump", [line for line in chip.all if line == "7 pump on"], [])
equal("each line is accounted for", (counts["lines"], counts["taken"] + counts["refused"] + counts["bad"]),
      (chip.sent - 1, chip.sent - 1))
equal("none was lost for want of room", (counts["dropped"], counts["evicted"]), (0, 0))


def logged():
    return [int(missed) for missed in re.findall(r"^log: node 7 is over its limit \(and (\d+) not logged\)$",
                                                 "\n".join(chip.all), re.M)]


# -- the log -----------------------------------------------------------------------------------------------------------
lines = len(logged())
check("its refusals are logged, at most one line in 2 s", 1 <= lines <= 1 + (after - before) // 2000, lines)
node = 100
while node < 300 and len(logged()) == lines:  # one refusal at a time, so that the one logged is the last
    time.sleep(0.2)
    chip.send("7 stop\n")
    chip.time(node)
    chip.time(node + 1)
    node += 2
counts = chip.counts(node)
equal("the lines of the log, with the numbers they say were not logged, are all refusals",
      sum(1 + missed for missed in logged()), counts["refused"])
check("which are nearly all that the babbling node sent", counts["refused"] > 2000, counts)

# -- time --------------------------------------------------------------------------------------------------------------
best = 0
for node in range(400, 410):  # a turn of SysTick is 0.34 s: in one reading without its interrupt not more could pass
    begin, host = chip.time(node), time.monotonic()
    time.sleep(1)
    span, host = chip.time(node) - begin, time.monotonic() - host
    best = max(best, span)
    if span >= 900:
        break
check("a second of silence, three turns of the 24-bit counter, is about a second to the chip",
      900 <= best <= 1000 * host * 1.2 + 300, (best, host))

before = chip.time(500)
chip.send("8 stop\n" * 11)
chip.time(501)
check("a burst of 10", len([line for line in chip.all if line.startswith("8 ")]) >= 10, chip.all[-12:])
node = 502
while node < 600:
    chip.send("8 time\n")
    after = chip.time(node)
    passed = [int(ms) for ms in re.findall(r"^8 (\d+) ms$", "\n".join(chip.all), re.M)]
    if passed:
        break
    node += 1
    time.sleep(0.1)
check("the next token comes back after a second by the chip's clock", passed and passed[0] >= before + 1000,
      (before, passed))
through = len([line for line in chip.all if line.startswith("8 ")])
check("and not more than the burst and one a second", through <= 10 + (after - before) // 1000,
      (through, before, after))

# -- more nodes than the table holds -----------------------------------------------------------------------------------
answers = []
for node in range(1000, 1360, 12):  # no more at once than the queue holds
    answers += chip.ask("".join(f"{node + i} stop\n" for i in range(12)), 12)
equal("a crowd of nodes is served", answers, [f"{node} pump off" for node in range(1000, 1360)])
check("though some had to be forgotten", chip.counts(701)["evicted"] > 0)
got = chip.ask("702 start\n")[0]
check("the pump's starts were not", re.fullmatch(r"702 start refused, again in \d+ s", got or ""), got)

# -- the end -----------------------------------------------------------------------------------------------------------
counts = chip.counts(700)
check("the stack was not used up", 0 < counts["stack"] <= int(sections["stack"]) - 512, counts["stack"])
print(f"firmware: {counts['lines']:,} lines, {counts['refused']:,} refused, stack used {counts['stack']:,} bytes")
equal("the firmware ends when told to", chip.ask("1 quit\n"), ["1 bye"])
equal("without a fault", chip.chip.wait(20), 0)
done()
