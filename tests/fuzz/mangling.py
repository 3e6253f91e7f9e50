"""What can happen to a file: bytes that rot, JSON that someone edited, something else in its place.

Each function changes the file at a path, and draws what it does from a `random.Random`.
"""

import json
import os
import shutil

ODD = (
    None,
    True,
    False,
    -1,
    0,
    1.5,
    2**64,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "yes",
    "\ud800",
    [],
    [1],
    {},
    [[]],
)


def _cut(path, rng):
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))] if content else b"")


def _flip(path, rng):
    content = bytearray(path.read_bytes() or b"0")
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _zero(path, rng):
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content) + 1)
    size = min(rng.choice((1, 16, 512, 4096)), len(content) - start)
    content[start : start + size] = bytes(size)
    path.write_bytes(content)


def _insert(path, rng):
    content = path.read_bytes()
    place = rng.randrange(len(content) + 1)
    path.write_bytes(content[:place] + rng.randbytes(rng.choice((1, 8, 512))) + content[place:])


def _empty(path, rng):
    path.write_bytes(b"")


def _noise(path, rng):
    path.write_bytes(rng.randbytes(rng.choice((1, 100, 5000))))


def _remove(path, rng):
    path.unlink()


def _fifo(path, rng):
    path.unlink()
    os.mkfifo(path)


def _folder(path, rng):
    path.unlink()
    path.mkdir()


def _link(path, rng):
    """To nothing, to itself, or to a file without end."""
    path.unlink()
    path.symlink_to(rng.choice(("nowhere", path.name, "/dev/zero", "/dev/full", "..")))


def _swap(path, rng):
    """Another file of the same folder takes its place, or the file of that name from another folder."""
    places = (path.parent.glob("*"), path.parent.parent.glob(f"*/{path.name}"))
    others = sorted({each for place in places for each in place if each.is_file() and each != path})
    if others:
        shutil.copy(rng.choice(others), path)


def _json(path, rng):
    """Drops, retypes or adds a key, at any depth; or the whole is something else."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(lines))
    content = json.loads(lines[number])
    inside, parent, key = content, None, None
    while isinstance(inside, dict | list) and inside and (parent is None or rng.random() < 0.5):
        parent, key = inside, rng.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        inside = parent[key]
    deed = rng.randrange(4)
    if parent is None or deed == 0:
        content = rng.choice(ODD)
    elif deed == 1:
        del parent[key]
    elif deed == 2:
        parent[key] = rng.choice(ODD)
    elif isinstance(parent, dict):
        parent[rng.choice(("colour", "", "epochs", "id"))] = rng.choice(ODD)
    lines[number] = rng.choice((json.dumps(content), "[" * 100_000)) if rng.random() < 0.1 else json.dumps(content)
    path.write_text("\n".join(lines) + "\n")


BYTES = (_cut, _flip, _flip, _flip, _zero, _zero, _insert, _empty, _noise, _swap, _remove, _fifo, _folder, _link)


def mangle(path, rng):
    """Does one of these to a file, and says which."""
    deed = _json if path.suffix in (".json", ".jsonl") and rng.random() < 0.7 else rng.choice(BYTES)
    deed(path, rng)
    return f"{deed.__name__[1:]} {path.name}"
