"""What the commands share: the names of devices, and JSON."""

import json
from typing import Any, Literal

Device = Literal["auto", "cpu", "cuda"]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
