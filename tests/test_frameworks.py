"""A few steps with a framework are those of a plain loop: accumulated, clipped inside the step, saved and resumed."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import repopt
from side_by_side import WAYS, batch, planned, small_net

ACCUMULATED, EPOCHS, PARTS = 2, 4, 6  # parts of a step; epochs; parts in an epoch
MAX_NORM = 0.1  # small enough that every step is clipped


def loss_of(net, images, _=None):
    return (net(images) - 1).square().mean()


def start(way):
    """The same net, plan and optimizer every time."""
    torch.manual_seed(0)
    net = small_net()
    plan = planned(net)
    plan.init_()
    return net, plan, make(net, plan, way)


def make(net, plan, way):
    if way == "closed":
        return repopt.optim.AdamW(net.parameters(), plan, lr=0.01, eps=1e-3, max_norm=MAX_NORM)
    optimizer = WAYS[way].theirs(net.parameters())
    repopt.attach(optimizer, plan, max_norm=MAX_NORM)
    return optimizer


def data():
    images = torch.cat([batch(step) for step in range(PARTS)])
    return DataLoader(TensorDataset(images, torch.zeros(len(images))), batch_size=len(images) // PARTS)


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


@pytest.fixture
def expected(way):
    """The weights after a plain loop, in which every step is clipped."""
    net, plan, optimizer = start(way)
    for _ in range(EPOCHS):
        for number, (images, _) in enumerate(data()):
            if number % ACCUMULATED == 0:
                optimizer.zero_grad()
            (loss_of(net, images) / ACCUMULATED).backward()
            if number % ACCUMULATED == ACCUMULATED - 1:
                assert repopt.clip_grad_norm_(plan, 1e9) > MAX_NORM  # which leaves the gradients as they are
                optimizer.step()
    return net.state_dict()


def assert_equal(net, expected):
    for name, value in net.state_dict().items():
        assert torch.allclose(value, expected[name], rtol=1e-11, atol=1e-12), name


def test_lightning(way, expected, tmp_path):
    lightning = pytest.importorskip("lightning", reason="needs lightning, of the extra dev")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.plan, _ = start(way)

        def configure_optimizers(self):
            return make(self.net, self.plan, way)

        def training_step(self, parts, _):
            return loss_of(self.net, *parts)

    def fit(epochs, **resumed):
        module = Module()
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accumulate_grad_batches=ACCUMULATED,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, data(), **resumed)
        return trainer, module.net

    trainer, whole = fit(EPOCHS)
    assert trainer.global_step == EPOCHS * PARTS // ACCUMULATED
    assert_equal(whole, expected)
    fit(EPOCHS // 2)[0].save_checkpoint(tmp_path / "half.ckpt")
    assert_equal(fit(EPOCHS, ckpt_path=tmp_path / "half.ckpt")[1], expected)


def test_accelerate(way, expected, tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate, of the extra dev")

    def run(epochs, saved=None):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
        net, _, optimizer = start(way)
        model, optimizer, loader = accelerator.prepare(net, optimizer, data())
        if saved:
            accelerator.load_state(saved)
        for _ in range(epochs):
            for parts in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(loss_of(model, *parts))
                    optimizer.step()
                    optimizer.zero_grad()
        return accelerator, net

    assert_equal(run(EPOCHS)[1], expected)
    run(EPOCHS // 2)[0].save_state(tmp_path / "half")
    assert_equal(run(EPOCHS // 2, str(tmp_path / "half"))[1], expected)


def test_hugging_face_trainer(way, expected, tmp_path):
    """Its own clipping, on by default, is off: it would go by the norm of the operators' gradients."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("accelerate", reason="needs accelerate, of the extra dev")

    class Model(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, images):
            return {"loss": loss_of(self.net, images)}

    def fit(epochs, **resumed):
        net, _, optimizer = start(way)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_grad_norm=0.0,
            per_device_train_batch_size=len(batch()),
            gradient_accumulation_steps=ACCUMULATED,
            num_train_epochs=epochs,
            save_strategy="epoch",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        pictures = [{"images": image} for part in range(PARTS) for image in batch(part)]
        trainer = InOrder(Model(net), arguments, train_dataset=pictures, optimizers=(optimizer, constant))
        trainer.train(**resumed)
        return net

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, dataset=None):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    assert_equal(fit(EPOCHS), expected)
    half = tmp_path / f"checkpoint-{EPOCHS // 2 * PARTS // ACCUMULATED}"
    assert_equal(fit(EPOCHS, resume_from_checkpoint=str(half)), expected)
