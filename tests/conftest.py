import gc
import os
import sys
from pathlib import Path

import pytest
import torch

from torchvision_on_cpu import StandInsFirst
from unmeasured import leave_out_exporters

sys.meta_path.insert(0, StandInsFirst())  # timm imports torchvision, also in the snippets of the docs
leave_out_exporters()

AUTHORS_SCALES = Path(__file__).parents[2] / "shared" / "authors_scales"


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Two workers on two cores: a thread each."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def frozen():
    """What stays for the session, modules above all, is not searched for garbage again: a fifth of the suite's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def authors_scales() -> Path:
    if not AUTHORS_SCALES.is_dir():
        pytest.skip("the scales that the paper's authors released are not beside this checkout")
    return AUTHORS_SCALES


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory) -> Path:
    """A small RepVGG that knows the digits; tests that write into it take a copy."""
    from exported import small_run

    return small_run(tmp_path_factory.mktemp("trained") / "run")
