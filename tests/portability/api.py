"""api.py HEADER...  Prints a C program that prints what these headers promise: macros, functions, types, the layout of
structs, the values of enums, and the bytes that are stored (from api_records.h). Private names are left out. The headers
are read as the compiler sees them (CC -E), with the options that declare more."""
import os
import re
import subprocess
import sys

FLAGS = ["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-DRATELIMIT_REDIS_ASYNC", "-DRATELIMIT_REDIS_KEEPER",
         "-DRATELIMIT_API=PUBLIC"]
PUBLIC = re.compile(r"(?:ratelimit|RATELIMIT)_\w+")


def read(header, *flags):
    compiler = os.environ.get("CC", "cc").split()
    return subprocess.run([*compiler, *FLAGS, "-E", *flags, header], check=True, text=True, capture_output=True).stdout


def said(text):
    """In one line, as a line of the program that prints it."""
    text = re.sub(r"\s+", " ", text.replace("__attribute__((warn_unused_result))", "")).strip()
    text = re.sub(r" ?([*(]) ", r" \1", text).replace("( ", "(").replace(" )", ")").replace("_Bool", "bool")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


printed = set()


def once(statement):
    """ratelimit_redis.h includes ratelimit.h."""
    if statement not in printed:
        printed.add(statement)
        print("    " + statement)


def show(what, text):
    once(f"printf(\"{what} %s\\n\", {said(text)});")


def macros(header):
    for line in sorted(read(header, "-dM").splitlines()):
        name, parameters, body = re.fullmatch(r"#define (\w+)(\([^)]*\))? ?(.*)", line).groups()
        if PUBLIC.fullmatch(name) and "_PRIV_" not in name and not name.endswith("_INCLUDED") and name != "RATELIMIT_API" and \
                not any(flag.startswith("-D" + name) for flag in FLAGS):
            show("macro", name + (parameters or " " + body))


def statements(text):
    """Those of the header, cut at the semicolons that are in no braces."""
    depth, start = 0, 0
    for at, c in enumerate(text):
        depth += (c == "{") - (c == "}")
        if c == ";" and not depth:
            yield text[start:at].strip()
            start = at + 1


def enum(body):
    for part in body.split(","):
        name = part.split("=")[0].strip()
        if name and "_PRIV_" not in name:
            once(f"printf(\"enum {name} %lld\\n\", (long long){name});")


def field(owner, declaration, name):
    once(f"printf(\"field %s +%zu, %zu bytes: %s\\n\", \"{owner}\", offsetof({owner}, {name}), "
         f"sizeof((({owner} *)0)->{name}), {said(declaration)});")


def struct(name, body):
    once(f"printf(\"struct {name} %zu bytes\\n\", sizeof({name}));")
    for declaration in body.split(";"):
        declaration = re.sub(r"__attribute__\(\(aligned\(8\)\)\)", "", declaration).strip()
        pointer = re.search(r"\(\*\s*(\w+)\)", declaration)
        if pointer:
            field(name, declaration, pointer.group(1))
        elif declaration:
            first, *others = declaration.split(",")
            kind = re.match(r"(.*[\s*])\w+", first).group(1)
            for one in [first] + [kind + other for other in others]:
                field(name, one, re.search(r"(\w+)\s*(\[.*)?$", one).group(1))


def declarations(header):
    for text in statements(read(header, "-P")):
        text = re.sub(r'^extern "C" {', "", text)
        found = re.fullmatch(r"typedef (struct|enum) (ratelimit_\w+) {(.*)} \2", text, re.S)
        if "ratelimit_priv_" in text or not PUBLIC.search(text):
            continue
        if found and found.group(1) == "struct":
            struct(found.group(2), found.group(3))
        elif found or text.startswith("enum {"):
            enum(found.group(3) if found else text[text.index("{") + 1:text.rindex("}")])
        elif text.startswith("typedef"):
            show("type", text[len("typedef"):])
        elif text.startswith("PUBLIC"):
            show("function", text[len("PUBLIC"):])


for path in sys.argv[1:]:
    print(f"#include \"{os.path.basename(path)}\"")
print("#include <stdio.h>\n#include \"api_records.h\"\nint main(void)\n{")
for path in sys.argv[1:]:
    macros(path)
    declarations(path)
print("    return api_records();\n}")
