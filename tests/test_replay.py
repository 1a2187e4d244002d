#!/usr/bin/env python3
"""test_replay.py - examples/replay/ from outside

    python3 tests/test_replay.py [BINARIES [WORD]...]      BINARIES: the folder with replay and make_log (default build)

The tests are in tests/replay/: each is a function whose name is the sentence it proves. Words on the command line choose
the tests whose names, or whose file's name, contain one. SEED=n in the environment replays the random ones, TIMES=1
prints how long each takes. Prints failures, then "N passed, N failed".

A missing program (chromium, nginx, haproxy, caddy) fails the tests that need it; SKIP_MISSING=1 skips them.
"""

import importlib
import inspect
import os
import pkgutil
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import replay  # noqa: E402
from replay.common import SEED, Skip  # noqa: E402


def all_tests():
    """The functions of tests/replay/*.py that are sentences: more than one word, no arguments."""
    for info in pkgutil.iter_modules(replay.__path__):
        module = importlib.import_module("replay." + info.name)
        for name, test in list(vars(module).items()):
            if inspect.isfunction(test) and test.__module__ == module.__name__ and "_" in name.strip("_") and info.name != "common":
                if not inspect.signature(test).parameters and not name.startswith("_"):
                    yield info.name, name, test


def main():
    words = sys.argv[2:]
    passed = failed = skipped = 0
    for module, name, test in all_tests():
        if words and not any(word in name or word == module for word in words):
            continue
        begin = time.monotonic()
        try:
            test()
            passed += 1
        except Skip as why:
            skipped += 1
            print(f"skipped: {name}: {why}")
        except Exception as e:  # one must not stop the others
            failed += 1
            print(f"FAILED: {module}: {name} (SEED={SEED}): {type(e).__name__}: {str(e)[:600]}")
        if os.environ.get("TIMES"):
            print(f"{time.monotonic() - begin:6.2f} s  {name}")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
