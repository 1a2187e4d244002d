"""The first program that anyone runs."""
import os
import subprocess

from example import ROOT, build, check, done, equal

SOURCE = "examples/quickstart.c"

program = build(SOURCE)
run = subprocess.run([program], text=True, capture_output=True)
equal("ten are let in at once, the next two are not", run.stdout, "come in\n" * 10 + "too many\n" * 2)
equal("it ends well", (run.returncode, run.stderr), (0, ""))
with open(os.path.join(ROOT, SOURCE), encoding="utf-8") as file:
    code = file.read().split("*/\n", 1)[1]
with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
    check("it is README's first program", file.read().split("```c\n", 1)[1].split("```", 1)[0] == code)
done()
