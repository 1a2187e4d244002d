"""The HTML page, looked at in a real browser without a window."""

import os
import re
import shutil
import struct
import subprocess
import zlib

from replay.common import *  # noqa: F401,F403

ARGS = ["--compare", "10/m burst 20", "--compare", "4/m", "--suggest"]


def page(*args, **more):
    path = os.path.join(FOLDER.name, "page.html")
    code, _, err = run(*args, "--html", path, **more)
    assert code in (0, 1), err
    with open(path, encoding="utf-8") as f:
        return path, f.read()


def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found and os.environ.get("SKIP_MISSING"):
        raise Skip("chromium is missing")
    assert found, "chromium is missing (package chromium; make deps installs it)"
    return found


def look(path, *args):
    """What the browser printed, and what it said in its console."""
    done = subprocess.run([browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                           "--user-data-dir=" + os.path.join(FOLDER.name, "chromium"), "--enable-logging=stderr", "--virtual-time-budget=3000", *args, "file://" + path],
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    said = done.stderr.decode("utf-8", "replace")
    return done.stdout.decode("utf-8"), [line for line in said.splitlines() if "CONSOLE" in line]


def pixels(path):
    """The colours of a PNG, as written by chromium: 8 bits, no interlace."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height, bits, colour = struct.unpack(">IIBB", data[at + 8:at + 18])
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + size]
        at += size + 12
    assert bits == 8 and colour in (2, 6)
    n, raw = (3 if colour == 2 else 4), zlib.decompress(packed)
    stride, before, seen = width * n, bytearray(width * n), {}
    for y in range(height):
        kind, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for x in range(stride):
            left, up, corner = line[x - n] if x >= n else 0, before[x], before[x - n] if x >= n else 0
            if kind == 4:
                p = left + up - corner
                near = min((abs(p - left), 0, left), (abs(p - up), 1, up), (abs(p - corner), 2, corner))[2]
            else:
                near = (0, left, up, (left + up) // 2)[kind]
            line[x] = (line[x] + near) & 255
        for x in range(0, stride, 4 * n):  # one in four is enough
            c = bytes(line[x:x + 3])
            seen[c] = seen.get(c, 0) + 1
        before = line
    return width, height, seen


def the_page_is_complete_in_itself():
    path, text = page(*ARGS, SAMPLE_FILE)
    assert text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
    assert "<script" not in text and "@import" not in text
    assert not re.search(r'(src|href)="(?!data:)', text) and not re.search(r"url\((?!#)", text)
    assert text.count("<svg") == text.count("</svg>") == 1 and text.count("<table") == text.count("</table>") == 4


def a_browser_shows_the_page_without_an_error():
    path, _ = page(*ARGS, SAMPLE_FILE)
    shot = os.path.join(FOLDER.name, "page.png")
    dom, console = look(path, "--dump-dom")
    assert console == [], console
    words = re.sub(r"<[^>]+>", " ", re.sub(r"<style.*?</style>", "", dom, flags=re.S))
    for text in ("What these limits would have done to sample.log", "(1) 10/m burst 20", "4,663", "203.0.113.200", "Ladder", "0.1 %", "19,012 combined", "line 1,796", "replay 10/m burst 20"):
        assert text in words, (text, words[:2000])
    _, console = look(path, "--window-size=1100,1900", "--screenshot=" + shot)
    assert console == [] and os.path.getsize(shot) > 20000, console
    width, height, seen = pixels(shot)
    assert (width, height) == (1100, 1900)
    white, blue, red = (seen.get(bytes.fromhex(c), 0) for c in ("ffffff", "7fb0e6", "d6453d"))
    assert white > width * height / 4 / 2 and blue > 1000 and red > 1000, (white, blue, red)


def the_page_is_dark_where_the_reader_wants_it():
    path, _ = page(*ARGS, SAMPLE_FILE)
    shot = os.path.join(FOLDER.name, "dark.png")
    look(path, "--window-size=1100,1000", "--screenshot=" + shot, "--blink-settings=preferredColorScheme=0")
    width, height, seen = pixels(shot)
    dark, red = (seen.get(bytes.fromhex(c), 0) for c in ("12171d", "ff6b5e"))
    assert dark > width * height / 4 / 2 and red > 1000, (dark, red, sorted(seen.items(), key=lambda s: -s[1])[:5])


def hostile_texts_are_only_text_on_the_page():
    evil = '</code><script>console.error(1)</script><img src=x onerror=console.error(2)>"\'&'
    log = f"1 {evil.replace(' ', '_')}\n" * 3 + f"bad {evil}\n" + "1 \x1b[2J\u202e\x00\n" * 2
    path, text = page("--limit", "1/w", "--suggest", file_of(log, "a<b>&.log"))
    assert "<script" not in text and "<img" not in text and "\x1b" not in text and "\u202e" not in text
    dom, console = look(path, "--dump-dom")
    assert console == [] and "&lt;/code&gt;&lt;script&gt;" in dom, console


def a_page_of_nothing_is_shown_too():
    for log in "", "nonsense\n", "1 a\n":
        path, _ = page("--limit", "1/s", "--suggest", stdin=log)
        dom, console = look(path, "--dump-dom")
        assert console == [] and ("NOTHING READ" in dom) == (log == "nonsense\n"), log
