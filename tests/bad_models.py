"""Models, their arguments and branches that a command cannot take, each with words of the sentence that says so."""

from pathlib import Path

TINY = "train --data fake:32,4,16 --epochs 1 --warmup-epochs 0 --batch-size 16 --device cpu --quiet --out x"
OTHER = f"{TINY} --method sgd --model"
PLANNED = f"{TINY} --method dirac --branches branches.toml --model"


def code(name, text):
    """A module in the working directory; each case has its own, as modules are imported once."""
    return lambda: Path(f"{name}.py").write_text(f"from torch import nn\n{text}\n")


def branches(text):
    return lambda: Path("branches.toml").write_text(text)


# what the case is -> what prepares it, the command, and words of the sentence
BAD_MODELS = {
    "a model that timm has not": (None, f"{OTHER} timm:resnet81", "timm has no model 'resnet81'; it has"),
    "a model that torchvision has not": (None, f"{OTHER} torchvision:resnet81", "torchvision has no model 'resnet81'"),
    "a model for detection": (None, f"{OTHER} torchvision:retinanet_resnet50_fpn", "torchvision has no model"),
    "a path for a module": (None, f"{OTHER} ./net.py:net", "package.module:factory"),
    "a module that is nowhere": (None, f"{OTHER} nowhere_at_all:net", "no module 'nowhere_at_all'"),
    "a module that needs a package": (
        code("bad_a", "import a_package_that_is_not_there"),
        f"{OTHER} bad_a:net",
        "'bad_a' needs a_package_that_is_not_there, which is not installed",
    ),
    "a module that cannot be imported": (
        code("bad_b", "raise KeyError('colour')"),
        f"{OTHER} bad_b:net",
        "'bad_b' cannot be imported (KeyError: 'colour')",
    ),
    "a factory that is not there": (
        code("bad_c", "def net(): pass"),
        f"{OTHER} bad_c:nett",
        "has no 'nett' (did you mean 'net'?)",
    ),
    "a factory that is a number": (code("bad_d", "net = 3"), f"{OTHER} bad_d:net", "bad_d:net is a value of type int"),
    "a factory that is a model": (
        code("bad_e", "net = nn.Flatten()"),
        f"{OTHER} bad_e:net",
        "bad_e:net is a model already",
    ),
    "a factory that returns no model": (
        code("bad_f", "def net(): return {}"),
        f"{OTHER} bad_f:net",
        "bad_f:net returns a dict",
    ),
    "a factory that fails": (
        code("bad_g", "def net(): return 1 / 0"),
        f"{OTHER} bad_g:net",
        "bad_g:net cannot be made: division by zero",
    ),
    "another number of classes": (
        code("bad_h", "def net(): return nn.Sequential(nn.Flatten(), nn.Linear(768, 7))"),
        f"{OTHER} bad_h:net",
        "returns (2, 7) for 2 images of 3 x 16 x 16, and the data has 4 classes",
    ),
    "images that the model does not take": (
        code("bad_i", "def net(): return nn.Conv2d(1, 4, 3)"),
        f"{OTHER} bad_i:net",
        "bad_i:net does not take images of 3 x 16 x 16",
    ),
    "several outputs": (
        code("bad_j", "def net(): return nn.LSTM(16, 4)"),
        f"{OTHER} bad_j:net",
        "bad_j:net ",
    ),
    "a state that is no tensor": (
        code(
            "bad_l",
            "class Net(nn.Sequential):\n    def get_extra_state(self): return {'seen': 3}\n"
            "    def set_extra_state(self, state): pass\ndef net(): return Net(nn.Flatten(), nn.Linear(768, 4))",
        ),
        f"{OTHER} bad_l:net",
        "bad_l:net has '_extra_state' in its state dict, which is no tensor",
    ),
    "modules that are lazy": (
        code("bad_m", "def net(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(4))"),
        f"{OTHER} bad_m:net",
        "bad_m:net has lazy modules (LazyLinear): let its factory run one batch through it",
    ),
    "an argument without =": (None, f"{OTHER} timm:resnet18 --model-args width", "--model-args takes key=value"),
    "an argument twice": (
        None,
        f"{OTHER} timm:resnet18 --model-args a=1 a=2",
        "the model's a is given twice: leave a=2 out",
    ),
    "an argument that timm does not know": (None, f"{OTHER} timm:resnet10t --model-args colour=1", "'colour'"),
    "an argument that our model does not know": (None, f"{TINY} --model-args colour=1", "no option 'colour'"),
    "an argument that our factory does not know": (
        code("bad_k", "def net(): return nn.Flatten()"),
        f"{OTHER} bad_k:net --model-args colour=1",
        "'colour'",
    ),
    "pretrained weights": (None, f"{OTHER} timm:resnet18 --model-args pretrained=true", "give --weights a file"),
    "branches for a method that has none": (
        None,
        f"{TINY} --method sgd --branches repvgg",
        "the method sgd has no branches",
    ),
    "a preset that is none": (None, f"{TINY} --branches vgg", "--branches takes repvgg, acnet or a .toml file"),
    "a file of branches that is not there": (None, f"{TINY} --branches branches.toml", "branches.toml"),
    "branches that are no TOML": (branches("conv ="), f"{PLANNED} timm:resnet10t", "branches.toml"),
    "branches that are no list": (branches("'conv' = 3"), f"{PLANNED} timm:resnet10t", "each line must be"),
    "a branch that is none": (
        branches("'conv' = ['conv3x3', 'conv5by5']"),
        f"{PLANNED} timm:resnet10t",
        "no branch 'conv5by5'",
    ),
    "a branch that is larger than the kernel": (
        branches("'layer1.0.conv1' = ['conv9x9']"),
        f"{PLANNED} timm:resnet10t",
        "layer1.0.conv1",
    ),
    "branches of no operator": (
        branches("'^colour$' = ['conv3x3']"),
        f"{PLANNED} timm:resnet10t",
        "'^colour$' matches no module",
    ),
}
