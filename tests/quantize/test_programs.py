"""An INT8 program's file gives the program back, and executes nothing."""

import json
import zipfile

import pytest
import torch
from torch import nn

import repopt
from exported import hostile_archive
from quantize.nets import images, small_net
from repopt.files import write_sealed
from repopt.quantize import Int8, load_program, post_training
from repopt.quantize.programs import OLD_PROGRAM, PROGRAM, check_holds, save_program
from repopt.quantize.pt2e import calibrated, captured_graph


@pytest.fixture(scope="module")
def program():
    return post_training(small_net(), [images()], Int8())


@torch.no_grad()
def test_a_file_is_the_program_for_any_number_and_size_of_images(program, tmp_path):
    save_program(program, tmp_path / PROGRAM)
    loaded = load_program(tmp_path / PROGRAM)
    for count, size in ((1, 16), (7, 16), (64, 16), (2, 24)):
        x = images(count, size)
        torch.testing.assert_close(loaded(x), program(x), rtol=0, atol=0)
    weights = [tensor for tensor in loaded.buffers() if tensor.ndim > 1]
    assert len(weights) == 7
    assert {tensor.dtype for tensor in weights} == {torch.int8}


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", ["repvgg_nano", "repghostnet_050"])
def test_a_program_with_branches_norms_and_excitation_is_written_too(name, tmp_path):
    small = {"depths": (2, 1, 1, 1), "se": True} if name == "repvgg_nano" else {}
    program = calibrated(repopt.create_model(name, num_classes=10, **small).eval(), [images()], Int8(weights="tensor"))
    save_program(program, tmp_path / PROGRAM)
    torch.testing.assert_close(load_program(tmp_path / PROGRAM)(images()), program(images()), rtol=0, atol=0)


@torch.no_grad()
def test_a_dropout_in_place_is_left_out_of_evaluation(tmp_path):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), torch.nn.ReLU(), torch.nn.Dropout(0.5, inplace=True))
    program = calibrated(net.eval(), [images()], Int8())
    save_program(program, tmp_path / PROGRAM)
    torch.testing.assert_close(load_program(tmp_path / PROGRAM)(images()), program(images()), rtol=0, atol=0)


class Usual(nn.Module):
    """What else the usual ConvNets compute."""

    def __init__(self):
        super().__init__()
        norms = [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)]
        activations = [nn.LeakyReLU(inplace=True), nn.PReLU(), nn.ELU(), nn.Tanh(), nn.Mish(), nn.Softmax(1)]
        sizes = [nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.AvgPool2d(4)]
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), *norms, *activations, *sizes)

    def forward(self, x):
        x = self.layers(x)[:, :, 1:]
        x = (x - x.mean(1, keepdim=True)) / 2
        return (x @ x.transpose(2, 3)).clamp(-1, 1).mean((2, 3), keepdim=True).squeeze(-1).unsqueeze(1)


class Parts(nn.Module):
    """Channels that are cut and joined, as in YOLO's and ShuffleNet's blocks, maxima over the map, and a finer map."""

    def __init__(self):
        super().__init__()
        self.before, self.within, self.finer = (
            nn.Conv2d(3, 8, 1),
            nn.Conv2d(4, 4, 3, 1, 1),
            nn.ConvTranspose2d(12, 4, 2, 2),
        )

    def forward(self, x):
        first, second = self.before(x).chunk(2, 1)
        x = self.finer(nn.functional.relu6(torch.cat([first, second, self.within(second)], 1)))
        (left, right), (one, three) = x.split(2, 1), x.split([1, 3], 1)
        parts = [left.mean((2, 3)), right.amax((2, 3)), nn.functional.adaptive_max_pool2d(three, 1).flatten(1)]
        return torch.cat([*parts, one.flatten(1)], 1)


@torch.no_grad()
@pytest.mark.parametrize("net", [Usual(), Parts()], ids=["usual", "parts"])
def test_a_file_holds_what_the_usual_networks_compute(net, tmp_path):
    net.eval()
    check_holds(captured_graph(net, images()))
    program = calibrated(net, [images()], Int8())
    save_program(program, tmp_path / PROGRAM)
    torch.testing.assert_close(load_program(tmp_path / PROGRAM)(images(5)), program(images(5)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("layer", "name"),
    [(nn.Softplus(), "softplus"), (nn.GELU("tanh"), "gelu.default with approximate"), (nn.LogSigmoid(), "log_sigmoid")],
)
def test_a_program_that_a_file_cannot_hold_is_named_before_and_after(layer, name, tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 3, 3), layer)
    said = rf"an INT8 file cannot hold aten.{name}.*: give --backend onnxruntime"
    with pytest.raises(ValueError, match=said):
        check_holds(captured_graph(net, images()))
    with pytest.raises(ValueError, match=said):
        save_program(calibrated(net, [images()], Int8()), tmp_path / PROGRAM)
    assert not list(tmp_path.iterdir())


def test_what_weights_are_made_of_need_not_be_held(tmp_path):
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 3)), nn.ReLU()).eval()
    check_holds(captured_graph(net, images()))
    save_program(calibrated(net, [images()], Int8()), tmp_path / PROGRAM)


X, OUT = ["input", []], ["output", [1]]
HOSTILE = {
    "another operator": [X, ["aten.from_file.default", ["/etc/passwd"]], OUT],
    "a function of Python": [X, ["os.system", ["true"]], OUT],
    "text as an argument": [X, ["aten.relu.default", ["x); import os"]], OUT],
    "a later step": [X, ["aten.relu.default", [{"step": 7}]], OUT],
    "a part by text": [X, ["part", [{"step": 0}, "__class__"]], OUT],
    "a dtype that is none": [X, ["aten.relu.default", [{"dtype": "os.system"}]], OUT],
    "no such tensor": [X, ["tensor", ["w"]], OUT],
    "no steps": {"input": 1},
    "a step of three": [["input", [], {}]],
    "no argument": [X, ["output", []]],
    "two inputs": [X, X, OUT],
    "two outputs": [X, ["aten.relu.default", [{"step": 0}]], OUT, OUT],
    "no output": [X, ["aten.relu.default", [{"step": 0}]]],
    "nothing": [],
    "a number without an end": [X, ["aten.flatten.using_ints", [{"step": 0}, 10**400]], OUT],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_asks_for_more_is_refused(case, tmp_path):
    write_sealed(tmp_path / PROGRAM, {}, {"steps": json.dumps(HOSTILE[case])})
    with pytest.raises(ValueError, match=r"program.safetensors' holds no INT8 program \(.*\): quantize the run again"):
        load_program(tmp_path / PROGRAM)


def test_a_damaged_file_is_refused(program, tmp_path):
    save_program(program, tmp_path / PROGRAM)
    whole = (tmp_path / PROGRAM).read_bytes()
    for place in (0, 12, len(whole) // 2, len(whole) - 1):
        (tmp_path / PROGRAM).write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"program.safetensors' is damaged"):
            load_program(tmp_path / PROGRAM)


@torch.no_grad()
def test_an_archive_of_an_earlier_version_is_loaded_if_it_is_trusted(program, tmp_path):
    path = tmp_path / OLD_PROGRAM
    batch = ({0: torch.export.Dim.DYNAMIC},)
    torch.export.save(torch.export.export(program, (images(2),), dynamic_shapes=batch, strict=True), path)
    with pytest.raises(ValueError, match=r"program.pt2' was written by an earlier version .* or give --trust"):
        load_program(path)
    for count, size in ((7, 16), (2, 24)):
        x = images(count, size)
        torch.testing.assert_close(load_program(path, trust=True)(x), program(x), rtol=0, atol=0)
    path.write_bytes(path.read_bytes()[:-99])
    with pytest.raises(ValueError, match=r"program.pt2' cannot be loaded \(.*\): quantize the run again"):
        load_program(path, trust=True)


def test_the_hostile_archive_of_these_tests_is_one(tmp_path):
    """Else it would prove nothing that it is refused."""
    path, trap = hostile_archive(tmp_path / OLD_PROGRAM)
    assert zipfile.is_zipfile(path)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_program(path, trust=True)
    assert trap.is_dir()
