"""Lets PyPI's torchvision, a CUDA build, load beside a CPU build of torch.

Its extension links to three CUDA libraries. Before `import torchvision` the tests load stand-ins for them, in which
every function returns 0; nms, roi_align and the other operators then run on the CPU. The stand-ins are compiled on the
spot, from the names that the extension itself asks for.
"""

import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
import torch


class StandInsFirst(MetaPathFinder):
    """Loads the stand-ins when torchvision is first looked for, and skips the test where that cannot be."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            load_stand_ins(PathFinder.find_spec(fullname))
            sys.meta_path.remove(self)


def load_stand_ins(torchvision):
    extension = torchvision and Path(torchvision.origin).with_name("_C.so")
    if torch.version.cuda or not extension or not extension.exists():
        return
    if not (shutil.which("cc") and shutil.which("nm") and shutil.which("readelf")):
        pytest.skip(
            "torchvision is a CUDA build beside a CPU build of torch, and there is no C compiler to make stand-ins for "
            "the CUDA libraries that it links to",
            allow_module_level=True,
        )
    needed = re.findall(r"\[(.+)\]", _printed("readelf", "--dynamic", extension))
    missing = re.findall(r" U (\w*cuda\w*)(?:@(\S+))?", _printed("nm", "--dynamic", "--undefined-only", extension))
    with tempfile.TemporaryDirectory() as folder:
        for library in (name for name in needed if "cuda" in name):
            # versioned names belong to the library of that version, the others to any
            names = [name for name, version in missing if version == library or not version]
            source, versions, built = (Path(folder, library + ending) for ending in (".c", ".map", ""))
            source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in names))
            versions.write_text(f"{library} {{ global: *; }};")
            script = [f"-Wl,--version-script={versions}"] if library.startswith("libcudart") else []
            _printed("cc", "-shared", "-fPIC", "-w", source, "-o", built, f"-Wl,-soname,{library}", *script)
            ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL)


def _printed(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
