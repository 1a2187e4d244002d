#!/usr/bin/env python3
"""mutants.py - changes one operator of the code at a time: a test must see each change.

    mutants.py BUILD [SECTION...]     the sections named, or all that it can run here; prints the score of each
    mutants.py BUILD again            only what survived the last run
    mutants.py BUILD self             checks this tool: on a small header of its own (fixture/), and on a dozen
                                      mutants of the real one

SAMPLE=N: N mutants of each section, drawn by SEED (1); without it all. JOBS: how many at once (1). TESTS: only these
tests of a section. CC: the compiler.

A mutant is the header with one change in the section that begins with the comment ">>implementation: SECTION":

    another operator    < becomes <=, + becomes -, && becomes ||, and so on
    another number      one more, one less
    a condition         is negated; a ! or a ~ is removed
    a statement         (an assignment or a call) is removed

In strings of the section "scripts" the same is done to Lua. The tests of the section (see SECTIONS) are built with the
mutant and run, the quick ones first, until one fails, crashes, or takes ten times longer than without the change: the
mutant is caught. Where there is tcc, it builds the quickest one first. A mutant that does not compile is none. A mutant
from which the compiler makes the same programs is none either: it lies in code that no test here compiles, or changes
nothing. What is equal to the original for another reason is explained in equal.txt:

    equal
    - the line as it stands in the header
    + the line as it stands in the mutant
    why a reason

White space makes no difference there. If a line stands in a section several times, the entry is for all of them. All
others survive, and are listed in BUILD/mutants/survivors: for each a test is missing, or an explanation.
"""
import concurrent.futures
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

# The tests of each section, in the order in which they are asked.
SECTIONS = {
    "arithmetic": ("ratelimit.h", "known_answers test_limit test_arithmetic test_borders test_ticks test_table "
                   "test_reported vectors test_model test_tier test_cas_held test_interleavings"),
    "bucket": ("ratelimit.h", "known_answers test_limit test_stolen test_borders test_limiter test_arithmetic "
               "test_interleavings test_reported vectors test_model test_interleavings_32 test_threads test_lock"),
    "table": ("ratelimit.h", "known_answers test_stolen test_borders test_table test_top test_reported test_cas_held "
              "test_interleavings test_model vectors test_interleavings_32 test_threads test_lock test_processes "
              "test_table+sanitizers"),
    "tier": ("ratelimit.h", "known_answers test_borders test_tier test_limiter test_reported test_cas_held "
             "test_model test_threads test_tier+sanitizers"),
    "scripts": ("ratelimit_redis.h", "redis/vectors_redis redis/test_store redis/test_locks"),
    "fixture": ("fixture.h", "fixture"),
}
# These take long: before the first one it is asked whether the compiler makes the same programs.
LONG = ("test_tier test_reported vectors test_model test_interleavings test_interleavings_32 test_threads test_lock "
        "test_processes").split()
# These pay for being optimised.
OPTIMISED = LONG + ["test_table"]
QUICK = "known_answers"
# In these no clock but the test's own runs: once failed is caught. Others must fail twice.
SURE = "fixture known_answers test_limit test_arithmetic test_ticks test_table test_borders test_top vectors".split()

# ---- mutants

C_TOKEN = re.compile(r"""
    (?P<comment> /\*.*?\*/ | //[^\n]*) |
    (?P<skip> ^[ ]*\#[ ]*(?!define\b)\w+[^\n\\]*(?:\\\n[^\n\\]*)* |
              ^[ ]*\#[ ]*define[ ]+\w+(?:\([^)]*\))? |
              '(?:\\.|[^'\\])*') |
    (?P<text> "(?:\\.|[^"\\])*") |
    (?P<number> \b(?:0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]*\b) |
    (?P<word> [A-Za-z_]\w*) |
    (?P<operator> <<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[^\s\w])
""", re.X | re.S | re.M)
LUA_TOKEN = re.compile(r"""
    (?P<comment> --.*) |
    (?P<skip> '[^']*' | \\.) |
    (?P<number> \b[0-9]+\b) |
    (?P<word> [A-Za-z_]\w*) |
    (?P<operator> <=|>=|==|~=|\.\.|[^\s\w])
""", re.X)
SWAP = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=",
        "!=": "==", "&&": "||", "||": "&&", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "&", "+=": "-=",
        "-=": "+=", "|=": "&=", "&=": "|=", "<<=": ">>=", ">>=": "<<=", "++": "--", "--": "++"}
LUA_SWAP = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=",
            "~=": "==", "and": "or", "or": "and"}
EITHER_WAY = ("++", "--")  # with no space beside it


class Mutant:
    def __init__(self, section, text, begin, end, new):
        first = text.rfind("\n", 0, begin) + 1
        last = text.find("\n", end)
        self.section, self.begin, self.end, self.new = section, begin, end, new
        self.line = text.count("\n", 0, begin) + 1
        self.was = squeeze(text[first:last])
        self.now = squeeze(text[first:begin] + new + text[end:last])

    def apply(self, text):
        kept = "\n" * text.count("\n", self.begin, self.end)  # lines keep their numbers
        return text[:self.begin] + self.new + kept + text[self.end:]


def squeeze(text):
    return " ".join(text.replace("\\\n", " ").rstrip("\\ ").split())


def section_of(text, name):
    starts = [m for m in re.finditer(r"^/\* ---- >>implementation: ([^*\n]*?)[ -]*(?:\*/)?$", text, re.M)]
    for i, start in enumerate(starts):
        if start.group(1) == name:
            return start.start(), starts[i + 1].start() if i + 1 < len(starts) else len(text)
    sys.exit("no section \"%s\"" % name)


def number_changes(text):
    digits = text.rstrip("uUlL")
    value, tail = int(digits, 0), text[len(digits):]
    write = hex if digits[:2] in ("0x", "0X") else str
    return [write(n) + tail for n in ((value + 1, value - 1) if value else (1,))]


def c_mutants(section, text, begin, end):
    tokens = [t for t in C_TOKEN.finditer(text, begin, end) if t.lastgroup != "comment"]
    for i, token in enumerate(tokens):
        kind, what, at = token.lastgroup, token.group(), token.span()
        before = tokens[i - 1].group() if i else ""
        spaced = text[at[0] - 1].isspace() and text[at[1]:at[1] + 1].isspace()
        if kind == "number":
            for new in number_changes(what):
                yield Mutant(section, text, *at, new)
        elif kind == "operator" and what in SWAP and (spaced or what in EITHER_WAY):
            yield Mutant(section, text, *at, SWAP[what])
        elif kind == "operator" and what in "!~":
            yield Mutant(section, text, *at, "")
        elif kind == "word" and what in ("true", "false"):
            yield Mutant(section, text, *at, "false" if what == "true" else "true")
        elif kind == "word" and what in ("if", "while") and tokens[i + 1].group() == "(":
            closing = matching(tokens, i + 1)
            if closing and text[tokens[i + 1].end():tokens[closing].start()].count("\n") == 0:
                inner = text[tokens[i + 1].end():tokens[closing].start()]
                yield Mutant(section, text, tokens[i + 1].end(), tokens[closing].start(), "!(%s)" % inner)
        if statement(text, tokens, i, before):
            last = next((j for j in range(i, len(tokens)) if tokens[j].group() == ";"), None)
            if last:
                yield Mutant(section, text, at[0], tokens[last].end(), ";")


def matching(tokens, opening):
    depth = 0
    for j in range(opening, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[j].group(), 0)
        if not depth:
            return j
    return None


def statement(text, tokens, i, before):
    """Does an assignment or a call begin here, at the start of its line?"""
    token = tokens[i]
    if text[text.rfind("\n", 0, token.start()) + 1:token.start()].strip() or i + 1 >= len(tokens):
        return False
    if before not in (";", "{", "}", ")", "else", ":"):
        return False
    if token.group() in ("*", "("):
        return before != ")" or token.group() == "*"
    return token.lastgroup == "word" and token.group() not in ("return", "if", "while", "for", "switch", "sizeof") and \
        tokens[i + 1].group() in ("=", "(", "->", ".", "[", "++", "--", "+=", "-=", "|=", "&=", "<<=", ">>=")


def lua_mutants(section, text, begin, end):
    for line in C_TOKEN.finditer(text, begin, end):
        if line.lastgroup != "text":
            continue
        tokens = [t for t in LUA_TOKEN.finditer(text, line.start() + 1, line.end() - 1) if t.lastgroup != "comment"]
        for i, token in enumerate(tokens):
            kind, what, at = token.lastgroup, token.group(), token.span()
            spaced = text[at[0] - 1].isspace() and text[at[1]:at[1] + 1].isspace()
            if kind == "number":
                for new in number_changes(what):
                    yield Mutant(section, text, *at, new)
            elif what in LUA_SWAP and spaced:
                yield Mutant(section, text, *at, LUA_SWAP[what])
            elif what == "not":
                yield Mutant(section, text, *at, "")
            elif what in ("if", "elseif") and tokens[-2].group() == "then":
                yield Mutant(section, text, at[1] + 1, tokens[-2].start(),
                             "not (%s) " % text[at[1] + 1:tokens[-2].start()].strip())


def mutants_of(section, text):
    begin, end = section_of(text, section)
    make = lua_mutants if section == "scripts" else c_mutants
    return [m for m in make(section, text, begin, end) if m.was != m.now]


def explained(name):
    entries = {}
    was = now = None
    for number, line in enumerate(open(name, encoding="utf-8"), 1):
        head, _, rest = line.strip().partition(" ")
        if head == "-":
            was = squeeze(rest)
        elif head == "+":
            now = squeeze(rest)
        elif head == "why" and was is not None and now is not None and rest:
            entries[was, now] = rest
        elif head == "equal":
            was = now = None
        elif head and not head.startswith("#"):
            sys.exit("%s:%d: %s" % (name, number, line))
    return entries


# ---- building and running

RUNNING = set()
FAULT = re.compile(r"FAILED: |  \S+\.[ch]:[0-9]+: ")  # see check.h

class Bench:
    """Builds and runs the tests of a section, without a change and with one."""

    def __init__(self, build, section, root, tests_folder, patience=10):
        self.file, tests = SECTIONS[section]
        wanted = os.environ.get("TESTS", "").split()
        self.tests = [test for test in tests.split() if not wanted or test in wanted]
        self.root, self.tests_folder, self.patience = root, tests_folder, patience
        self.section, self.folder = section, os.path.join(build, section)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.text = open(os.path.join(root, self.file), encoding="utf-8").read()
        self.local = threading.local()
        self.lock = threading.Lock()
        self.without = {}
        self.originals = None
        self.quick = bool(shutil.which("tcc")) and self.tests[:1] == [QUICK] and not self.quick_catches(self.text)

    def baseline(self, test):
        """The program without a change, and what each mutant may take, measured when the test is first asked."""
        with self.lock:
            if test not in self.without:
                if not self.build(test, self.text):
                    raise RuntimeError("%s does not compile without any change" % test)
                for _ in range(3):  # on a machine at work a test of real servers may fail by itself
                    begin = time.time()
                    wrong = self.run(test, 1200)
                    if not wrong:
                        break
                if wrong:
                    raise RuntimeError("%s fails without any change: %s" % (test, wrong))
                self.without[test] = open(self.program(test), "rb").read(), 10 * (time.time() - begin) + self.patience
            return self.without[test]

    def own(self):
        """A folder for each thread: a copy of the header, changed, and the programs."""
        if not hasattr(self.local, "folder"):
            self.local.folder = os.path.join(self.folder, "%d" % threading.get_ident())
            os.makedirs(self.local.folder)
            other = {"ratelimit.h": "ratelimit_redis.h", "ratelimit_redis.h": "ratelimit.h"}.get(self.file)
            if other:
                shutil.copy(os.path.join(self.root, other), self.local.folder)
        return self.local.folder

    def program(self, test):
        return os.path.join(self.own(), os.path.basename(test))

    def put(self, text):
        with open(os.path.join(self.own(), self.file), "w", encoding="utf-8") as file:
            file.write(text)

    def build(self, test, text):
        self.put(text)
        libraries = ["-lhiredis"] if test.startswith("redis/") else []
        name, _, sanitizers = test.partition("+")
        more = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if sanitizers else []
        return self.compile("-O1" if test in OPTIMISED else "-O0",
                            more + ["-I" + self.tests_folder, "-I" + self.tests_folder + "/redis",
                                    os.path.join(self.tests_folder, name + ".c"), "-o", self.program(test)], libraries)

    def compile(self, level, rest, libraries):
        command = os.environ.get("CC", "gcc").split() + ["-std=c99", level, "-w", "-pthread", "-I."] + rest + libraries
        return subprocess.run(command + ["-I" + self.root], cwd=self.own(), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0

    def quick_catches(self, text):
        self.put(text)
        made = subprocess.run(["tcc", "-w", "-DRATELIMIT_NO_THREADS", "-I.", "-I" + self.tests_folder, "-I" + self.root,
                               os.path.join(self.tests_folder, QUICK + ".c"), "-o", self.program(QUICK)],
                              cwd=self.own(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
        return self.run(QUICK, 3) if made else ""

    def run(self, test, limit):
        """What went wrong, as a text; empty if nothing did. At the first failure it is ended."""
        process = subprocess.Popen([self.program(test)], cwd=self.root, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        RUNNING.add(process)
        timer = threading.Timer(limit, end, [process])
        timer.start()
        said = ""
        for line in process.stdout:
            line = line.decode("utf-8", "replace")
            if FAULT.match(line):
                said = line.strip()
                break
        late = not timer.is_alive()
        timer.cancel()
        if said:
            end(process)
        process.stdout.close()
        code = process.wait()
        end(process)  # and what it has started
        RUNNING.discard(process)
        return said or ("it takes too long" if late else "ends with %d" % code if code else "")

    def objects(self, text):
        """What the compiler makes of it: with all that a processor has, with a lock, with 32 bits."""
        for before in ("", "#define RATELIMIT_LOCK() hold()\n#define RATELIMIT_UNLOCK() leave()\n"
                       "extern void hold(void);\nextern void leave(void);\n",
                       "#undef __GCC_ATOMIC_LLONG_LOCK_FREE\n#define __GCC_ATOMIC_LLONG_LOCK_FREE 1\n"):
            folder = self.own()
            self.put(text)
            with open(os.path.join(folder, "same.c"), "w", encoding="utf-8") as file:
                file.write("%s#define RATELIMIT_IMPLEMENTATION\n#include \"ratelimit.h\"\n" % before)
            made = self.compile("-O2", ["-c", "same.c", "-o", "same.o"], [])
            yield open(os.path.join(folder, "same.o"), "rb").read() if made else b""

    def same_code(self, text):
        with self.lock:
            self.originals = self.originals or list(self.objects(self.text))
        return all(made and made == was for made, was in zip(self.objects(text), self.originals))

    def judge(self, mutant):
        """caught HOW, stillborn, same, survives"""
        text = mutant.apply(self.text)
        seen = asked = False
        wrong = self.quick and self.quick_catches(text)
        if wrong:
            return "caught by %s: %s" % (QUICK, wrong)
        for test in self.tests:
            program, limit = self.baseline(test)
            if not self.build(test, text):
                return "stillborn"
            if open(self.program(test), "rb").read() == program:
                continue
            seen = True
            if test in LONG and not asked and self.file == "ratelimit.h":
                asked = True  # before the long tests
                if self.same_code(text):
                    return "same"
            wrong = self.run(test, limit)
            if wrong and test not in SURE:
                wrong = self.run(test, limit)
            if wrong:
                return "caught by %s: %s" % (test, wrong)
        return "survives" if seen else "same"


def stop(*_):
    """From outside: what was begun here ends, too."""
    for process in list(RUNNING):
        end(process)
    os._exit(130)


def end(process):
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass


# ---- runs

def judge_all(bench, mutants, jobs, told):
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for mutant, verdict in zip(mutants, pool.map(bench.judge, mutants)):
            told(mutant, verdict)


def chosen(section, mutants):
    sample = int(os.environ.get("SAMPLE", "0"))
    if not sample or sample >= len(mutants):
        return mutants
    return random.Random("%s %s" % (os.environ.get("SEED", "1"), section)).sample(mutants, sample)


def score(build, sections, root, again):
    equal = explained(os.path.join(HERE, "equal.txt"))
    used = set()
    survivors = []
    log = open(os.path.join(build, "log"), "a", encoding="utf-8")
    last = set()
    if again:
        for line in open(os.path.join(build, "survivors"), encoding="utf-8"):
            last.add(tuple(line.rstrip("\n").split("\t")[i] for i in (0, 2, 3)))
    rows = []
    for section in sections:
        name = os.path.join(root, SECTIONS[section][0])
        found = mutants_of(section, open(name, encoding="utf-8").read())
        known = [m for m in found if (m.was, m.now) in equal]
        used.update((m.was, m.now) for m in known)
        mutants = [m for m in found if (section, m.was, m.now) in last] if again else chosen(section, found)
        left = [m for m in mutants if (m.was, m.now) not in equal]
        count = {"explained": len(mutants) - len(left), "caught": 0, "survives": 0, "same": 0, "stillborn": 0}

        def told(mutant, verdict):
            count[verdict.split()[0]] += 1
            log.write("%s:%d\t%s\t%s\t%s\n" % (section, mutant.line, verdict, mutant.was, mutant.now))
            log.flush()
            if verdict == "survives":
                survivors.append(mutant)
                print("survives: %s\n    - %s\n    + %s" % (section, mutant.was, mutant.now), flush=True)

        if left:
            bench = Bench(build, section, root, os.path.join(root, "tests"))
            judge_all(bench, left, int(os.environ.get("JOBS", "1")), told)
        counted = count["caught"] + count["explained"] + count["survives"]
        rows.append((section, len(found), counted, count["caught"], count["explained"], count["survives"]))
    with open(os.path.join(build, "survivors"), "w", encoding="utf-8") as file:
        for m in survivors:
            file.write("%s\t%d\t%s\t%s\n" % (m.section, m.line, m.was, m.now))
    print("%-12s %10s %8s %8s %10s %10s" % ("mutants of", "possible", "counted", "caught", "explained", "surviving"))
    for row in rows:
        print("%-12s %10d %8d %8d %10d %10d" % row)
    if set(sections) >= {"arithmetic", "bucket", "table", "tier", "scripts"}:
        for was, _ in set(equal) - used:
            print("explained, but no mutant any more: " + was)
    return sum(row[5] for row in rows), sum(row[3] + row[4] for row in rows)


def self_check(build, root):
    passed = failed = 0

    def check(what, good):
        nonlocal passed, failed
        passed, failed = passed + bool(good), failed + (not good)
        if not good:
            print("FAILED: mutants: " + what)

    folder = os.path.join(HERE, "fixture")
    bench = Bench(build, "fixture", folder, os.path.join(folder, "tests"), 3)
    verdicts = {}
    judge_all(bench, mutants_of("fixture", bench.text), 1,
              lambda m, verdict: verdicts.setdefault("%s => %s" % (m.was, m.now), verdict))
    wanted = {}
    for line in open(os.path.join(folder, "wanted.txt"), encoding="utf-8"):
        verdict, _, what = line.rstrip("\n").partition("\t")
        wanted[what] = verdict
    for what in sorted(set(wanted) | set(verdicts)):
        check("%s: %s, not %s" % (what, verdicts.get(what, "not made"), wanted.get(what, "known")),
              verdicts.get(what, "").startswith(wanted.get(what, "-")))
    os.environ["SAMPLE"] = "12"
    name, tests = SECTIONS["arithmetic"]
    SECTIONS["arithmetic"] = name, " ".join(tests.split()[:3])
    _, good = score(build, ["arithmetic"], root, False)
    check("of 12 mutants of arithmetic only %d were caught by the quick tests" % good, good >= 7)
    print("%d passed, %d failed" % (passed, failed))
    return failed


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    build = os.path.join(os.path.abspath(sys.argv[1]), "mutants")
    os.makedirs(build, exist_ok=True)
    what = sys.argv[2:]
    if what == ["self"]:
        sys.exit(1 if self_check(os.path.join(build, "self"), ROOT) else 0)
    if what == ["again"]:
        lines = open(os.path.join(build, "survivors"), encoding="utf-8")
        sections = list(dict.fromkeys(line.split("\t")[0] for line in lines))
    else:
        sections = what or ["arithmetic", "bucket", "table", "tier"] + ["scripts"] * ("REDIS_PORT" in os.environ)
    surviving, good = score(build, sections, ROOT, what == ["again"])
    print("%d passed, %d failed" % (good, surviving))
    sys.exit(1 if surviving else 0)


if __name__ == "__main__":
    main()
