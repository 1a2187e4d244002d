#!/usr/bin/env python3
"""examples/server: the server, sanitized, under redis-cli, ioredis, a hiredis program and raw sockets. The checks are in
tests/server/, a file for each subject:

    server.py [BUILD [SUBJECT...]]      decisions, clients, bad_input, operation, restart; none: all

SEED=n in the environment says what random ones begin with. Where the real clock runs, limits are so slow that no token
comes back meanwhile, so all numbers are exact."""
import importlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from example import done  # noqa: E402
from server.common import SEED  # noqa: E402

print(f"SEED={SEED}")
for subject in sys.argv[2:] or ["decisions", "clients", "bad_input", "operation", "restart"]:
    importlib.import_module("server." + subject).run()
done()
